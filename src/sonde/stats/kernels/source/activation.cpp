// How many elements of each channel are active. Compiled once for each instruction set, LEVEL.
//
// Magnitudes of one format are ordered as their bits are, read as integers: nothing is converted, and one comparison tells an
// active element from an inactive one. NaN and infinity are above every limit; a share that has any is passed again for them.

#include "elements.hpp"

namespace sonde {
namespace {

// The bits of an element, and what magnitudes they stand for.
struct DoubleMagnitude {
    using Element = double;
    using Bits = int64_t;
    static constexpr Bits kMask = INT64_MAX, kInfinity = 0x7ff0000000000000;
    static Bits of(double value) {
        Bits bits;
        std::memcpy(&bits, &value, sizeof bits);
        return Bits(bits & kMask);
    }
    static double value(Bits bits) {
        double made;
        std::memcpy(&made, &bits, sizeof made);
        return made;
    }
};

struct FloatMagnitude {
    using Element = float;
    using Bits = int32_t;
    static constexpr Bits kMask = INT32_MAX, kInfinity = 0x7f800000;
    static Bits of(float value) { return Bits(bits_of(value)) & kMask; }
    static double value(Bits bits) { return float_of(uint32_t(bits)); }
};

struct BrainMagnitude {
    using Element = uint16_t;
    using Bits = int16_t;
    static constexpr Bits kMask = INT16_MAX, kInfinity = 0x7f80;
    static Bits of(uint16_t bits) { return Bits(bits & kMask); }
    static double value(Bits bits) { return BrainFloats::one(uint16_t(bits)); }
};

struct HalfMagnitude {
    using Element = uint16_t;
    using Bits = int16_t;
    static constexpr Bits kMask = INT16_MAX, kInfinity = 0x7c00;
    static Bits of(uint16_t bits) { return Bits(bits & kMask); }
    static double value(Bits bits) { return Halves::one(uint16_t(bits)); }
};

// The largest magnitude that is at most *eps*: what is above the one is above the other.
template <class T> typename T::Bits limit_of(double eps) {
    typename T::Bits low = 0, high = T::kInfinity;
    while (high - low > 1) {
        const auto middle = typename T::Bits(low + (high - low) / 2);
        (T::value(middle) <= eps ? low : high) = middle;
    }
    return low;
}

template <class B> B larger(B one, B other) { return one > other ? one : other; }

// Adjacent elements of one channel: how many are above *limit*. *most* becomes the largest magnitude seen.
template <class T> uint32_t above_in(const typename T::Element *x, size_t n, typename T::Bits limit, typename T::Bits &most) {
    using Bits = typename T::Bits;
    static_assert(kBlock <= INT16_MAX, "counted in Bits");
    uint32_t made = 0;
    for (size_t k = 0; k < n; k += kBlock) {
        const size_t end = n - k < kBlock ? n : k + kBlock;
        Bits above = 0, seen = most;
        for (size_t i = k; i < end; i++) {
            const Bits magnitude = T::of(x[i]);
            above = Bits(above + (magnitude > limit));
            seen = larger(magnitude, seen);
        }
        made += uint32_t(above);
        most = seen;
    }
    return made;
}

// kRows elements of each channel, *channels* apart from each other.
template <class T, int kRows>
void add_rows(const typename T::Element *x, size_t channels, typename T::Bits limit, uint32_t *__restrict above, typename T::Bits &most) {
    using Bits = typename T::Bits;
    Bits seen = most;
    for (size_t c = 0; c < channels; c++) {
        Bits count = 0;
        for (int row = 0; row < kRows; row++) {
            const Bits magnitude = T::of(x[row * channels + c]);
            count = Bits(count + (magnitude > limit));
            seen = larger(magnitude, seen);
        }
        above[c] += uint32_t(count);
    }
    most = seen;
}

// Elements *first* to *end* of a tensor whose channels have *inner* adjacent elements, by runs: visit(elements, length, channel).
template <class E, class Visit> void each_run(const E *x, const Channels &shape, size_t first, size_t end, Visit visit) {
    size_t channel = first / shape.inner % shape.channels, left = shape.inner - first % shape.inner;
    while (first < end) {
        const size_t length = left < end - first ? left : end - first;
        visit(x + first, length, channel);
        first += length;
        left = shape.inner;
        channel = channel + 1 == shape.channels ? 0 : channel + 1;
    }
}

template <class T> void count(const void *data, const Channels &shape, size_t first, size_t end, double eps, ChannelCounts &into) {
    using Element = typename T::Element;
    const Element *x = static_cast<const Element *>(data);
    const auto limit = limit_of<T>(eps);
    typename T::Bits most = 0;
    if (shape.inner == 1) {
        constexpr int kRows = 4;  // for each time that a count is read and written
        size_t row = first;
        for (; row + kRows <= end; row += kRows) add_rows<T, kRows>(x + row * shape.channels, shape.channels, limit, into.above, most);
        for (; row < end; row++) add_rows<T, 1>(x + row * shape.channels, shape.channels, limit, into.above, most);
        first *= shape.channels;
        end *= shape.channels;
    } else {
        each_run(x, shape, first, end, [&](const Element *run, size_t length, size_t channel) {
            into.above[channel] += above_in<T>(run, length, limit, most);
        });
    }
    if (most < T::kInfinity) return;
    each_run(x, shape, first, end, [&](const Element *run, size_t length, size_t channel) {
        for (size_t i = 0; i < length; i++) {
            const auto magnitude = T::of(run[i]);
            into.spoiled[channel] += magnitude >= T::kInfinity;
            into.nan += magnitude > T::kInfinity;
        }
    });
}

}  // namespace

namespace LEVEL {

void activation(Kind kind, const void *data, const Channels &shape, size_t first, size_t end, double eps, ChannelCounts &into) {
    switch (kind) {
        case kDouble: count<DoubleMagnitude>(data, shape, first, end, eps, into); break;
        case kFloat: count<FloatMagnitude>(data, shape, first, end, eps, into); break;
        case kBrainFloat: count<BrainMagnitude>(data, shape, first, end, eps, into); break;
        case kHalf: count<HalfMagnitude>(data, shape, first, end, eps, into); break;
    }
}

}  // namespace LEVEL
}  // namespace sonde
