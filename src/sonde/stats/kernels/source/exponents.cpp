// The exponent histogram of adjacent elements. Compiled once for each instruction set, LEVEL.
//
// A loop over a block finds the power of each element from its bits, as a 16-bit number. The powers of a block are few and close
// together as a rule: then each is compared with all elements, a register of bytes at a time. Otherwise they are counted in tables.
// The elements that are no ordinary numbers are counted one by one.

#include "elements.hpp"

namespace sonde {
namespace {

constexpr int kTables = 8;  // equal neighbours would wait for each other's count
constexpr int kSlots = 512;
constexpr uint16_t kNoSlot = kSlots - 1;
constexpr uint16_t kApart = 0xffff;  // stands for the power of an element that was counted already
constexpr int kLowest = -149, kHighest = 128, kFirst = kBelow + 1;  // powers of the bins, place of the lowest
constexpr int kMostBins = 16 * lanes::kWidth;  // of different powers, up to which comparing is faster than tables

// The least magnitudes beyond fp16, bf16, e4m3 and e5m2, as exponents.py has them.
constexpr int kFormats = 4;
constexpr double kLimits[kFormats] = {65520.0, 0x1.ffp127, 0x1.d000000000001p8, 61440.0};

inline int64_t bits_of(double value) {
    int64_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

// (magnitude - 1) >> kShift is ceil(log2) of a finite magnitude, up to a constant: bins are closed above. Zero has kNone.

struct FloatBits {
    using Element = float;
    using Bits = uint32_t;
    using Signed = int32_t;
    static constexpr int kShift = 23;
    static constexpr Bits kMagnitude = 0x7fffffffu, kInfinity = 0x7f800000u;
    static constexpr Bits kSmallest = 0x007fffffu;  // of bits - 1: 2**-126, below which the exponent field says nothing
    static constexpr Bits kLimitBits[kFormats] = {0x477ff000u, 0x7f7f8000u, 0x43e80001u, 0x47700000u};
    static Bits of(float value) { return sonde::bits_of(value); }
    static double value(float value) { return value; }
    static uint16_t slot(uint16_t power) { return power; }
    static constexpr int kPlace = kFirst + (-126 - kLowest);  // of slot 0, which holds 2**-126
};

struct BrainBits {
    using Element = uint16_t;
    using Bits = uint16_t;
    using Signed = int16_t;
    static constexpr int kShift = 7;
    static constexpr Bits kMagnitude = 0x7fffu, kInfinity = 0x7f80u;
    static constexpr Bits kSmallest = 0x007fu;
    static constexpr Bits kLimitBits[kFormats] = {0x4780u, kInfinity, 0x43e9u, 0x4770u};  // the next that there are
    static Bits of(uint16_t bits) { return bits; }
    static double value(uint16_t bits) { return BrainFloats::one(bits); }
    static uint16_t slot(uint16_t power) { return power; }
    static constexpr int kPlace = FloatBits::kPlace;
};

struct DoubleBits {
    using Element = double;
    using Bits = uint64_t;
    using Signed = int64_t;
    static constexpr int kShift = 52;
    static constexpr Bits kMagnitude = 0x7fffffffffffffffu, kInfinity = 0x7ff0000000000000u, kSmallest = 0;
    static constexpr Bits kLimitBits[kFormats] = {0x40effe0000000000u, 0x47eff00000000000u, 0x407d000000000001u, 0x40ee000000000000u};
    static Bits of(double value) { return Bits(bits_of(value)); }
    static double value(double value) { return value; }
    static uint16_t slot(uint16_t power) {
        constexpr int kLeast = 1022 + kLowest - 1, kMost = 1022 + kHighest + 1;
        return uint16_t((power < kLeast ? kLeast : power > kMost ? kMost : power) - kLeast);
    }
    static constexpr int kPlace = kBelow;
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
        into.places[DoubleBits::kPlace + DoubleBits::slot(uint16_t((magnitude - 1) >> DoubleBits::kShift))]++;
        into.places[kNegative] += bits < 0;
        for (int i = 0; i < kFormats; i++) into.places[kOver + i] += magnitude >= bits_of(kLimits[i]);
    }
}

struct Table {
    bool used = false;
    uint32_t counts[kTables][kSlots];

    void count(const uint16_t *slots, size_t n) {
        if (!used) std::memset(counts, 0, sizeof counts);
        used = true;
        size_t i = 0;
        for (; i + kTables <= n; i += kTables) {
            for (int k = 0; k < kTables; k++) counts[k][slots[i + k]]++;
        }
        for (; i < n; i++) counts[0][slots[i]]++;
    }
};

// What there is in a block, apart from zeros: the least and the greatest magnitude - 1, and how many elements have a sign.
template <class T> struct Range {
    typename T::Signed most;
    typename T::Bits least, negative;
};

// Counts NaN, infinities and subnormal floats one by one. Returns how many they are. *powers* and *seen* become those of the rest.
template <class T> size_t set_apart(const typename T::Element *x, size_t n, uint16_t *powers, Range<T> &seen, Exponents &into) {
    using Bits = typename T::Bits;
    using Signed = typename T::Signed;
    constexpr Bits kNone = Bits(~Bits(0));
    size_t apart = 0;
    seen.most = -1;
    seen.least = kNone;
    for (size_t i = 0; i < n; i++) {
        const Bits bits = T::of(x[i]), below = Bits((bits & T::kMagnitude) - 1);
        if (below == kNone) continue;
        if (below >= T::kSmallest && below < T::kInfinity - 1) {
            seen.most = Signed(below) > seen.most ? Signed(below) : seen.most;
            seen.least = below < seen.least ? below : seen.least;
        } else {
            count_one(T::value(x[i]), into);
            seen.negative = Bits(seen.negative - (Signed(bits) < 0));
            powers[i] = kApart;
            apart++;
        }
    }
    return apart;
}

// Adds to *counts* how many of *n* powers are *low*, *low* + 1, ... up to *bins* of them, at most kMostBins. Returns their sum.
size_t compare(const uint16_t *powers, size_t n, uint16_t low, int bins, uint32_t *counts) {
    using lanes::Bytes;
    constexpr size_t kPer = sizeof(Bytes), kMostSteps = 255;  // of a count in a byte
    constexpr int kTogether = 4;
    static_assert(kMostBins + kTogether < 256, "others are 255");
    uint8_t near[kBlock + kPer];
    for (size_t i = 0; i < n; i++) {
        const uint16_t above = uint16_t(powers[i] - low);
        near[i] = uint8_t(above < 255 ? above : 255);
    }
    const size_t steps = (n + kPer - 1) / kPer;
    std::memset(near + n, 255, steps * kPer - n);
    size_t made = 0;
    for (int bin = 0; bin < bins; bin += kTogether) {
        for (size_t step = 0; step < steps;) {
            Bytes found[kTogether] = {}, wanted[kTogether];
            for (int i = 0; i < kTogether; i++) wanted[i] = lanes::filled<Bytes>(uint8_t(bin + i));
            const size_t end = steps - step < kMostSteps ? steps : step + kMostSteps;
            for (; step < end; step++) {
                const Bytes value = lanes::load<Bytes>(near + step * kPer);
                for (int i = 0; i < kTogether; i++) found[i] = lanes::with_equal(found[i], value, wanted[i]);
            }
            for (int i = 0; i < kTogether; i++) {
                const uint32_t sum = lanes::sum_of(found[i]);
                counts[bin + i] += sum;
                made += sum;
            }
        }
    }
    return made;
}

// At most kBlock elements.
template <class T> void block(const typename T::Element *x, size_t n, Table &table, Exponents &into) {
    using Bits = typename T::Bits;
    using Signed = typename T::Signed;
    uint16_t powers[kBlock];
    Signed most = -1;
    Bits least = Bits(~Bits(0)), negative = 0;
    for (size_t i = 0; i < n; i++) {
        const Bits bits = T::of(x[i]), below = Bits((bits & T::kMagnitude) - 1);
        powers[i] = uint16_t(below >> T::kShift);
        most = Signed(below) > most ? Signed(below) : most;
        least = below < least ? below : least;
        negative = Bits(negative + (bits >> (8 * sizeof(Bits) - 1)));
    }
    Range<T> seen = {most, least, negative};
    size_t found = 0;
    if (seen.least < T::kSmallest || seen.most >= Signed(T::kInfinity - 1)) found = set_apart<T>(x, n, powers, seen, into);
    for (int format = 0; format < kFormats; format++) {
        if (seen.most < Signed(T::kLimitBits[format] - 1)) continue;
        Bits over = 0;
        for (size_t i = 0; i < n; i++) {
            const Bits magnitude = T::of(x[i]) & T::kMagnitude;
            over = Bits(over + ((magnitude >= T::kLimitBits[format]) & (magnitude < T::kInfinity)));
        }
        into.places[kOver + format] += over;
    }
    if (seen.most >= 0) {
        const auto low = uint16_t(seen.least >> T::kShift), high = uint16_t(Bits(seen.most) >> T::kShift);
        const int bins = high - low + 1;
        if (bins <= kMostBins) {
            uint32_t counts[kMostBins + 4] = {};
            found += compare(powers, n, low, bins, counts);
            for (int i = 0; i < bins; i++) into.places[T::kPlace + T::slot(uint16_t(low + i))] += counts[i];
        } else {
            for (size_t i = 0; i < n; i++) {
                const bool ordinary = powers[i] >= low && powers[i] <= high;
                found += ordinary;
                powers[i] = ordinary ? T::slot(powers[i]) : kNoSlot;
            }
            table.count(powers, n);
        }
    }
    into.places[kZero] += n - found;
    if (found < n && seen.negative) {
        for (size_t i = 0; i < n; i++) seen.negative = Bits(seen.negative - (T::of(x[i]) == Bits(~T::kMagnitude)));
    }
    into.places[kNegative] += seen.negative;
}

template <class T> void fold(const Table &table, Exponents &into) {
    if (!table.used) return;
    for (int slot = 0; slot < kNoSlot; slot++) {
        uint64_t count = 0;
        for (int k = 0; k < kTables; k++) count += table.counts[k][slot];
        if (count) into.places[T::kPlace + slot] += count;
    }
}

}  // namespace

namespace LEVEL {

void exponents(Kind kind, const void *data, const void *minus, size_t n, Exponents &into) {
    Table table;
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
        } else if (kind == kBrainFloat) {
            block<BrainBits>(static_cast<const uint16_t *>(data) + k, length, table, into);
        } else {
            to_floats(kind, static_cast<const uint16_t *>(data) + k, buffer, length);
            block<FloatBits>(buffer, length, table, into);
        }
    }
    kind == kDouble ? fold<DoubleBits>(table, into) : fold<FloatBits>(table, into);
}

}  // namespace LEVEL
}  // namespace sonde
