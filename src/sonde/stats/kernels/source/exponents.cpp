// The exponent histogram of adjacent elements. Compiled once for each instruction set, LEVEL.
//
// A loop over a block finds the power of each element from its bits, as a 16-bit number; a second loop, only where it is needed,
// those of subnormal floats. The powers of a block are few and close together as a rule: then each is compared with all elements,
// a register of bytes at a time. Otherwise they are counted in tables.

#include "elements.hpp"

namespace sonde {
namespace {

constexpr int kTables = 8;  // equal neighbours would wait for each other's count
constexpr int kSlots = 512;
constexpr uint16_t kNoSlot = kSlots - 1;
constexpr uint16_t kApart = 0xffff, kZeroPower = 0xfffe;  // stand for the powers of NaN and infinities, and of zeros
constexpr int kRaised = 149;  // is added to all powers of a block with subnormals, so that theirs are above 0
constexpr int kLowest = -149, kHighest = 128, kFirst = kBelow + 1;  // powers of the bins, place of the lowest
constexpr int kMostBins = 16 * lanes::kWidth;  // of different powers, up to which comparing is faster than tables

// The least magnitudes beyond fp16, bf16, e4m3 and e5m2, as exponents.py has them.
constexpr int kFormats = 4;

inline int64_t bits_of(double value) {
    int64_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

// (magnitude - 1) >> kShift is ceil(log2) of a finite magnitude, up to a constant: bins are closed above. The power of a subnormal
// float is that of its magnitude, read as an integer, minus a constant.

struct FloatBits {
    using Element = float;
    using Bits = uint32_t;
    using Signed = int32_t;
    static constexpr int kShift = 23;
    static constexpr Bits kMagnitude = 0x7fffffffu, kInfinity = 0x7f800000u;
    static constexpr Bits kSmallest = 0x007fffffu;  // of bits - 1: 2**-126, below which the exponent field says nothing
    static constexpr Bits kLimitBits[kFormats] = {0x477ff000u, 0x7f7f8000u, 0x43e80001u, 0x47700000u};
    static Bits of(float value) { return sonde::bits_of(value); }
    static Bits subnormal(Bits magnitude) { return (sonde::bits_of(float(int32_t(magnitude))) - 1) >> kShift; }
    static uint16_t slot(int power) { return uint16_t(power + kRaised); }
    static constexpr int kPlace = kFirst + (-126 - kLowest) - kRaised;  // of slot 0
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
    static Bits subnormal(Bits magnitude) { return Bits(FloatBits::subnormal(magnitude) + 149 - 133); }
    static uint16_t slot(int power) { return FloatBits::slot(power); }
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
    static Bits subnormal(Bits) { return 0; }
    static uint16_t slot(int power) {
        constexpr int kLeast = 1022 + kLowest - 1, kMost = 1022 + kHighest + 1;
        return uint16_t((power < kLeast ? kLeast : power > kMost ? kMost : power) - kLeast);
    }
    static constexpr int kPlace = kBelow;
};

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

// Counts NaN and infinities, and finds the powers of all other elements, raised. Returns how many are NaN or infinite.
template <class T>
size_t find_all_powers(const typename T::Element *x, size_t n, uint16_t *powers, typename T::Bits &negative, Exponents &into) {
    using Bits = typename T::Bits;
    using Signed = typename T::Signed;
    Bits nan = 0, inf = 0, signs = 0;
    for (size_t i = 0; i < n; i++) {
        const Bits bits = T::of(x[i]), magnitude = bits & T::kMagnitude, below = Bits(magnitude - 1);
        const Bits subnormal = T::subnormal(magnitude), normal = Bits((below >> T::kShift) + kRaised);
        const Bits power = below < T::kSmallest ? subnormal : normal;
        const Bits finite = magnitude == 0 ? Bits(kZeroPower) : power;
        powers[i] = uint16_t(magnitude >= T::kInfinity ? Bits(kApart) : finite);
        nan = Bits(nan + (magnitude > T::kInfinity));
        inf = Bits(inf + (magnitude == T::kInfinity));
        signs = Bits(signs + ((magnitude >= T::kInfinity) & (Signed(bits) < 0)));
    }
    negative = Bits(negative - signs);
    into.places[kNan] += nan;
    into.places[kInf] += inf;
    return size_t(nan) + size_t(inf);
}

// The least and the greatest power of those that are neither zeros nor apart; kZeroPower or more, and 0, if there is none.
void find_range(const uint16_t *powers, size_t n, uint16_t &low, uint16_t &high) {
    uint16_t least = kApart, most = 0;
    for (size_t i = 0; i < n; i++) {
        const uint16_t power = powers[i], turned = uint16_t(power + 2);  // 0 and 1 stand for zeros and what is apart
        least = power < least ? power : least;
        most = turned > most ? turned : most;
    }
    low = least;
    high = uint16_t(most < 2 ? 0 : most - 2);
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
    size_t found = 0;
    int raised = 0;
    auto low = uint16_t(least >> T::kShift), high = uint16_t(Bits(most) >> T::kShift);
    bool ordinary = most >= 0;  // whether there are other elements than zeros
    if (least < T::kSmallest || most >= Signed(T::kInfinity - 1)) {
        raised = kRaised;
        found = find_all_powers<T>(x, n, powers, negative, into);
        find_range(powers, n, low, high);
        ordinary = low < kZeroPower;
        most = high < kRaised ? Signed(0) : Signed((Bits(high - kRaised + 1) << T::kShift) - 1);  // at most so much is finite
    }
    for (int format = 0; format < kFormats; format++) {
        if (most < Signed(T::kLimitBits[format] - 1)) continue;
        Bits over = 0;
        for (size_t i = 0; i < n; i++) {
            const Bits magnitude = T::of(x[i]) & T::kMagnitude;
            over = Bits(over + ((magnitude >= T::kLimitBits[format]) & (magnitude < T::kInfinity)));
        }
        into.places[kOver + format] += over;
    }
    const int bins = high - low + 1;
    if (ordinary && bins <= kMostBins) {
        uint32_t counts[kMostBins + 4] = {};
        found += compare(powers, n, low, bins, counts);
        for (int i = 0; i < bins; i++) into.places[T::kPlace + T::slot(low + i - raised)] += counts[i];
    } else if (ordinary) {
        for (size_t i = 0; i < n; i++) {
            const bool within = powers[i] >= low && powers[i] <= high;
            found += within;
            powers[i] = within ? T::slot(powers[i] - raised) : kNoSlot;
        }
        table.count(powers, n);
    }
    into.places[kZero] += n - found;
    if (found < n && negative) {
        for (size_t i = 0; i < n; i++) negative = Bits(negative - (T::of(x[i]) == Bits(~T::kMagnitude)));
    }
    into.places[kNegative] += negative;
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
