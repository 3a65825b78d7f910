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

constexpr int kFed = 4 * lanes::kWidth;  // elements converted by one feed(): two vectors of floats

// What converts the elements of a block, kFed at a time, just before they are needed. No statistic depends on the order of
// elements, so that a feed may permute its own.
struct BrainFloats {
    const uint16_t *from;
    static float one(uint16_t bits) { return float_of(uint32_t(bits) << 16); }
    void feed(size_t at, float *to) const {
#if defined(__GNUC__) && !defined(SONDE_PORTABLE)
        using Words = lanes::Lanes<uint32_t, 2 * lanes::kWidth>;
        const Words words = lanes::load<Words>(from + at);  // two elements each
        const Words low = words << 16, high = words & 0xffff0000u;
        std::memcpy(to + at, &low, sizeof low);
        std::memcpy(to + at + 2 * lanes::kWidth, &high, sizeof high);
#else
        for (int i = 0; i < kFed; i++) to[at + i] = one(from[at + i]);
#endif
    }
    void rest(size_t at, size_t n, float *to) const {
        for (; at < n; at++) to[at] = one(from[at]);
    }
};

struct Halves {
    const uint16_t *from;
    static float one(uint16_t bits) { return from_half(bits); }
    void feed(size_t at, float *to) const {
#if defined(__AVX512F__) && defined(__GNUC__)
        for (size_t i = at; i < at + kFed; i += 16) {
            _mm512_storeu_ps(to + i, _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from + i))));
        }
#elif defined(__F16C__) && defined(__GNUC__)
        for (size_t i = at; i < at + kFed; i += 8) {
            _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from + i))));
        }
#else
        for (size_t i = at; i < at + kFed; i++) to[i] = one(from[i]);
#endif
    }
    void rest(size_t at, size_t n, float *to) const {
        for (; at < n; at++) to[at] = one(from[at]);
    }
};

// For elements that need no conversion.
struct AsTheyAre {
    template <class T> void feed(size_t, T *) const {}
    template <class T> void rest(size_t, size_t, T *) const {}
};

template <class Source> inline void convert(const Source &source, float *to, size_t n) {
    size_t i = 0;
    for (; i + kFed <= n; i += kFed) source.feed(i, to);
    source.rest(i, n, to);
}

inline void to_floats(Kind kind, const uint16_t *from, float *to, size_t n) {
    kind == kHalf ? convert(Halves{from}, to, n) : convert(BrainFloats{from}, to, n);
}

// How the elements of an array are loaded, one vector at a time: as they are, and as doubles.
struct OfFloats {
    using Element = float;
    using Vector = lanes::Floats;
    using Zeros = lanes::Counts;
    static lanes::Doubles widened(const float *from) { return lanes::widened(from); }
};

struct OfDoubles {
    using Element = double;
    using Vector = lanes::Doubles;
    using Zeros = lanes::WideCounts;
    static lanes::Doubles widened(const double *from) { return lanes::load<lanes::Doubles>(from); }
};

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
