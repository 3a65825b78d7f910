// Half precision as float, which holds every value of it, and differences as double. Compiled once for each instruction set.
#pragma once

#include "lanes.hpp"
#include "passes.hpp"

namespace sonde {
namespace {

inline uint32_t bits_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float float_of(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline float from_half(uint16_t half) {
    const uint32_t magnitude = half & 0x7fffu, rebias = (127 - 15) << 23;
    const uint32_t normal = (magnitude << 13) + rebias;
    const uint32_t special = normal + rebias;  // infinity and NaN
    const uint32_t subnormal = bits_of(float(int32_t(magnitude)) * 0x1p-24f);
    const uint32_t bits = magnitude >= 0x7c00u ? special : magnitude < 0x400u ? subnormal : normal;
    return float_of(bits | uint32_t(half & 0x8000u) << 16);
}

// How the elements of an array are read: one, or kRead vectors of doubles at a time. No statistic depends on the order of
// elements, so that each kStep of them, two vectors, may be permuted. An element is a float or a double; vectors are of such elements.
struct ReadAsFloats {
    using Element = float;
    using Vector = lanes::Floats;
    using Zero = int32_t;
    using Zeros = lanes::Counts;
    static constexpr int kStep = 4 * lanes::kWidth, kRead = 2;
};

struct OfFloats : ReadAsFloats {
    const float *from;
    explicit OfFloats(const float *elements) : from(elements) {}

    float operator[](size_t i) const { return from[i]; }
    Vector vector(size_t at) const { return lanes::load<Vector>(from + at); }
    void read(size_t at, lanes::Doubles *to) const {
        for (int i = 0; i < kRead; i++) to[i] = widened(from + at + i * lanes::kWidth);
    }
    OfFloats after(size_t i) const { return OfFloats(from + i); }
    static lanes::Doubles widened(const float *from) { return lanes::widened(from); }
};

struct OfDoubles {
    using Element = double;
    using Vector = lanes::Doubles;
    using Zero = int64_t;
    using Zeros = lanes::WideCounts;
    static constexpr int kStep = 2 * lanes::kWidth, kRead = 1;
    const double *from;
    explicit OfDoubles(const double *elements) : from(elements) {}

    double operator[](size_t i) const { return from[i]; }
    Vector vector(size_t at) const { return lanes::load<Vector>(from + at); }
    void read(size_t at, lanes::Doubles *to) const { to[0] = widened(from + at); }
    OfDoubles after(size_t i) const { return OfDoubles(from + i); }
    static lanes::Doubles widened(const double *from) { return lanes::load<lanes::Doubles>(from); }
};

struct BrainFloats : ReadAsFloats {
    const uint16_t *from;
    explicit BrainFloats(const uint16_t *elements) : from(elements) {}

    static float one(uint16_t bits) { return float_of(uint32_t(bits) << 16); }
    float operator[](size_t i) const { return one(from[i]); }
    Vector vector(size_t at) const {
#if defined(__GNUC__) && !defined(SONDE_PORTABLE)
        const bool second = at % kStep;
        using Words = lanes::Lanes<uint32_t, 2 * lanes::kWidth>;
        const Words words = lanes::load<Words>(from + (at - second * 2 * lanes::kWidth));  // two elements each
        return (lanes::Floats)(second ? words & 0xffff0000u : words << 16);
#else
        lanes::Floats made;
        for (int i = 0; i < 2 * lanes::kWidth; i++) made[i] = one(from[at + i]);
        return made;
#endif
    }
    void read(size_t at, lanes::Doubles *to) const { lanes::widen(vector(at), to); }
    BrainFloats after(size_t i) const { return BrainFloats(from + i); }
};

struct Halves : ReadAsFloats {
    const uint16_t *from;
    explicit Halves(const uint16_t *elements) : from(elements) {}

    static float one(uint16_t bits) { return from_half(bits); }
    float operator[](size_t i) const { return one(from[i]); }
    Vector vector(size_t at) const {
#if defined(SONDE_LANES_OF_512)
        return (lanes::Floats)_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from + at)));
#elif defined(SONDE_LANES_OF_256) && defined(__F16C__)
        return (lanes::Floats)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from + at)));
#else
        lanes::Floats made;
        for (int i = 0; i < 2 * lanes::kWidth; i++) made[i] = one(from[at + i]);
        return made;
#endif
    }
    void read(size_t at, lanes::Doubles *to) const { lanes::widen(vector(at), to); }
    Halves after(size_t i) const { return Halves(from + i); }
};

// All elements as floats.
template <class Source> inline void convert(const Source &source, float *to, size_t n) {
    size_t i = 0;
#if defined(SONDE_LANES_OF_512) || defined(SONDE_LANES_OF_256)
    for (; i + Source::kStep <= n; i += Source::kStep) {
        const lanes::Floats made[2] = {source.vector(i), source.vector(i + Source::kStep / 2)};
        std::memcpy(to + i, made, sizeof made);
    }
#endif
    for (; i < n; i++) to[i] = source[i];
}

inline void to_floats(Kind kind, const uint16_t *from, float *to, size_t n) {
    kind == kHalf ? convert(Halves(from), to, n) : convert(BrainFloats(from), to, n);
}

constexpr size_t kDifferences = kBlock / 2;  // formed at a time: they are twice as wide as floats

template <class T> inline void subtract(const typename T::Element *x, const typename T::Element *y, double *to, size_t n) {
    size_t i = 0;
    for (; i + lanes::kWidth <= n; i += lanes::kWidth) {
        const lanes::Doubles difference = T::widened(x + i) - T::widened(y + i);
        std::memcpy(to + i, &difference, sizeof difference);
    }
    for (; i < n; i++) to[i] = double(x[i]) - double(y[i]);
}

// Calls visit(doubles, length) for the differences of the elements of two arrays, each rounded at most once, to double.
template <class Visit> inline void each_difference(Kind kind, const void *data, const void *minus, size_t n, Visit visit) {
    double made[kDifferences];
    float one[kDifferences], other[kDifferences];
    for (size_t k = 0; k < n; k += kDifferences) {
        const size_t length = n - k < kDifferences ? n - k : kDifferences;
        if (kind == kDouble) {
            subtract<OfDoubles>(static_cast<const double *>(data) + k, static_cast<const double *>(minus) + k, made, length);
        } else if (kind == kFloat) {
            subtract<OfFloats>(static_cast<const float *>(data) + k, static_cast<const float *>(minus) + k, made, length);
        } else {
            to_floats(kind, static_cast<const uint16_t *>(data) + k, one, length);
            to_floats(kind, static_cast<const uint16_t *>(minus) + k, other, length);
            subtract<OfFloats>(one, other, made, length);
        }
        visit(made, length);
    }
}

}  // namespace
}  // namespace sonde
