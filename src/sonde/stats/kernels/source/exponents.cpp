// The exponent histogram of adjacent elements. Compiled once for each instruction set, LEVEL.
//
// A block goes through two loops: one finds the slot of each element from its bits, and vectorises; one counts. A block
// with a float below 2**-126 in it is counted element by element instead.

#include "elements.hpp"

namespace sonde {
namespace {

constexpr int kTables = 8;  // equal neighbours would wait for each other's count
constexpr int kSlots = 512;
constexpr uint16_t kZeroSlot = kSlots - 1, kNanSlot = kSlots - 2, kInfSlot = kSlots - 3;
constexpr int kLowest = -149, kHighest = 128, kFirst = kBelow + 1;  // powers of the bins, place of the lowest

// The least magnitudes beyond fp16, bf16, e4m3 and e5m2, as exponents.py has them.
constexpr int kFormats = 4;
constexpr double kLimits[kFormats] = {65520.0, 0x1.ffp127, 0x1.d000000000001p8, 61440.0};

inline int64_t bits_of(double value) {
    int64_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

// (bits - 1) >> shift is ceil(log2) of a finite magnitude, up to a constant: bins are closed above.

struct FloatBits {
    using Element = float;
    using Bits = uint32_t;
    using Signed = int32_t;
    static constexpr Bits kMagnitude = 0x7fffffffu, kInfinity = 0x7f800000u;
    static constexpr Bits kSmallest = 0x007fffffu;  // of bits - 1: 2**-126, below which the exponent field says nothing
    static constexpr int kPlace = kFirst + (-126 - kLowest);  // of slot 0, which holds 2**-126
    static constexpr Bits kLimitBits[kFormats] = {0x477ff000u, 0x7f7f8000u, 0x43e80001u, 0x47700000u};
    static Bits of(float value) { return sonde::bits_of(value); }
    static uint16_t slot(Bits magnitude) { return uint16_t((magnitude - 1) >> 23); }  // that of zero is kZeroSlot
};

struct DoubleBits {
    using Element = double;
    using Bits = uint64_t;
    using Signed = int64_t;
    static constexpr Bits kMagnitude = 0x7fffffffffffffffu, kInfinity = 0x7ff0000000000000u, kSmallest = 0;
    static constexpr int kPlace = kBelow;
    static constexpr Bits kLimitBits[kFormats] = {0x40effe0000000000u, 0x47eff00000000000u, 0x407d000000000001u, 0x40ee000000000000u};
    static Bits of(double value) { return Bits(bits_of(value)); }
    static uint16_t slot(Bits magnitude) {
        constexpr int64_t kLeast = 1022 + kLowest - 1, kMost = 1022 + kHighest + 1;
        int64_t power = int64_t((magnitude - 1) >> 52);
        power = power < kLeast ? kLeast : power > kMost ? kMost : power;
        return uint16_t(magnitude == 0 ? int64_t(kZeroSlot) : power - kLeast);
    }
};

void count_one(double value, Exponents &into) {
    const int64_t bits = bits_of(value), magnitude = bits & INT64_MAX;
    if (magnitude > int64_t(DoubleBits::kInfinity)) {
        into.places[kNan]++;
    } else if (magnitude == int64_t(DoubleBits::kInfinity)) {
        into.places[kInf]++;
    } else if (magnitude == 0) {
        into.places[kZero]++;
    } else {
        into.places[DoubleBits::kPlace + DoubleBits::slot(uint64_t(magnitude))]++;
        into.places[kNegative] += bits < 0;
        for (int i = 0; i < kFormats; i++) into.places[kOver + i] += magnitude >= bits_of(kLimits[i]);
    }
}

struct Table { uint32_t counts[kTables][kSlots]; };

template <class T> void block(const typename T::Element *x, size_t n, Table &table, Exponents &into) {
    using Bits = typename T::Bits;
    using Signed = typename T::Signed;
    uint16_t slots[kBlock];
    Signed most = 0;
    Bits least = ~Bits(0);
    Bits negative = 0;
    for (size_t i = 0; i < n; i++) {
        const Bits bits = T::of(x[i]), magnitude = bits & T::kMagnitude;
        slots[i] = T::slot(magnitude);
        most = Signed(magnitude) > most ? Signed(magnitude) : most;
        least = magnitude - 1 < least ? magnitude - 1 : least;
        negative += Signed(bits) < 0 && magnitude != 0;
    }
    if (least < T::kSmallest) {
        for (size_t i = 0; i < n; i++) count_one(x[i], into);
        return;
    }
    if (Bits(most) >= T::kInfinity) {
        for (size_t i = 0; i < n; i++) {
            const Bits bits = T::of(x[i]), magnitude = bits & T::kMagnitude;
            if (magnitude < T::kInfinity) continue;
            slots[i] = magnitude == T::kInfinity ? kInfSlot : kNanSlot;
            negative -= Signed(bits) < 0;
        }
    }
    into.places[kNegative] += negative;
    for (int format = 0; format < kFormats; format++) {
        if (Bits(most) < T::kLimitBits[format]) continue;
        Bits over = 0;
        for (size_t i = 0; i < n; i++) {
            const Bits magnitude = T::of(x[i]) & T::kMagnitude;
            over += (magnitude >= T::kLimitBits[format]) & (magnitude < T::kInfinity);
        }
        into.places[kOver + format] += over;
    }
    size_t i = 0;
    for (; i + kTables <= n; i += kTables) {
        for (int k = 0; k < kTables; k++) table.counts[k][slots[i + k]]++;
    }
    for (; i < n; i++) table.counts[0][slots[i]]++;
}

template <class T> void fold(const Table &table, Exponents &into) {
    for (int slot = 0; slot < kSlots; slot++) {
        uint64_t count = 0;
        for (int k = 0; k < kTables; k++) count += table.counts[k][slot];
        if (slot >= kInfSlot) into.places[slot == kZeroSlot ? kZero : slot == kNanSlot ? kNan : kInf] += count;
        else if (count) into.places[T::kPlace + slot] += count;
    }
}

}  // namespace

namespace LEVEL {

void exponents(Kind kind, const void *data, const void *minus, size_t n, Exponents &into) {
    Table table = {};
    if (minus) {
        each_difference(kind, data, minus, n, [&](const double *made, size_t length) { block<DoubleBits>(made, length, table, into); });
        fold<DoubleBits>(table, into);
        return;
    }
    float buffer[kBlock];
    for (size_t k = 0; k < n; k += kBlock) {
        const size_t length = n - k < kBlock ? n - k : kBlock;
        if (kind == kDouble) {
            block<DoubleBits>(static_cast<const double *>(data) + k, length, table, into);
        } else if (kind == kFloat) {
            block<FloatBits>(static_cast<const float *>(data) + k, length, table, into);
        } else {
            to_floats(kind, static_cast<const uint16_t *>(data) + k, buffer, length);
            block<FloatBits>(buffer, length, table, into);
        }
    }
    kind == kDouble ? fold<DoubleBits>(table, into) : fold<FloatBits>(table, into);
}

}  // namespace LEVEL
}  // namespace sonde
