// The vectors of one instruction set: this file is compiled once for each, with that set's compiler flags.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#if (defined(__x86_64__) || defined(__i386__)) && defined(__GNUC__)
#include <immintrin.h>
#endif

#if defined(__GNUC__) && !defined(SONDE_PORTABLE)
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#define SONDE_LANES_OF_512
#elif defined(__AVX2__)
#define SONDE_LANES_OF_256
#elif defined(__SSE2__) && !defined(__AVX__)
#define SONDE_LANES_OF_128
#endif
#endif

namespace lanes {
namespace {

#if defined(SONDE_LANES_OF_512)
constexpr int kWidth = 8;  // doubles in a register
#elif defined(__AVX__)
constexpr int kWidth = 4;
#else
constexpr int kWidth = 2;
#endif

#if defined(__GNUC__) && !defined(SONDE_PORTABLE)  // gcc and clang: their vector types have all operators and ?:

template <class T, int N> struct Of { typedef T type __attribute__((vector_size(sizeof(T) * N))); };
template <class T, int N> using Lanes = typename Of<T, N>::type;

#else  // other compilers: loops that they may vectorise

template <class T, int N> struct Lanes {
    T at[N];
    T &operator[](int i) { return at[i]; }
    T operator[](int i) const { return at[i]; }
    Lanes &operator+=(const Lanes &other) { for (int i = 0; i < N; i++) at[i] += other.at[i]; return *this; }
    friend Lanes operator*(Lanes a, const Lanes &b) { for (int i = 0; i < N; i++) a.at[i] *= b.at[i]; return a; }
    friend Lanes operator-(Lanes a, const Lanes &b) { for (int i = 0; i < N; i++) a.at[i] -= b.at[i]; return a; }
};

#endif

using Doubles = Lanes<double, kWidth>;
using Floats = Lanes<float, 2 * kWidth>;
using Counts = Lanes<int32_t, 2 * kWidth>;      // per lane of Floats
using Magnitudes = Lanes<uint32_t, 2 * kWidth>;
using Bytes = Lanes<uint8_t, 8 * kWidth>;
using WideCounts = Lanes<int64_t, kWidth>;      // per lane of Doubles

template <class V, class T> inline V load(const T *from) {
    V made;
    std::memcpy(&made, from, sizeof made);  // one unaligned load
    return made;
}

// Asks for memory that is read soon. Left to itself the processor stops at the end of each page.
inline void prefetch(const void *at) {
#if defined(__GNUC__)
    __builtin_prefetch(at);
#endif
}

template <class V, class T> inline V filled(T value) {
#if defined(__GNUC__) && !defined(SONDE_PORTABLE)
    if constexpr (std::is_integral_v<T>) return V{} + value;
#endif
    V made;
    for (size_t i = 0; i < sizeof(V) / sizeof(T); i++) made[i] = value;
    return made;
}

// As many floats as there are doubles in a register, as doubles. gcc 12 would convert by halves, or one by one.
inline Doubles widened(const float *from) {
#if defined(SONDE_PORTABLE) || !defined(__GNUC__)
    Doubles made;
    for (int i = 0; i < kWidth; i++) made[i] = from[i];
    return made;
#elif defined(SONDE_LANES_OF_512)
    return (Doubles)_mm512_maskz_cvtps_pd(0xff, _mm256_loadu_ps(from));
#elif defined(SONDE_LANES_OF_256)
    return (Doubles)_mm256_cvtps_pd(_mm_loadu_ps(from));
#elif defined(SONDE_LANES_OF_128)
    return (Doubles)_mm_cvtps_pd(_mm_castsi128_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(from))));
#else
    return __builtin_convertvector((load<Lanes<float, kWidth>>(from)), Doubles);
#endif
}

// The lower and the upper half of *floats*, as doubles.
inline void widen(Floats floats, Doubles *to) {
#if defined(SONDE_LANES_OF_512)
    to[0] = (Doubles)_mm512_maskz_cvtps_pd(0xff, _mm512_maskz_extractf32x8_ps(0xff, (__m512)floats, 0));
    to[1] = (Doubles)_mm512_maskz_cvtps_pd(0xff, _mm512_maskz_extractf32x8_ps(0xff, (__m512)floats, 1));
#elif defined(SONDE_LANES_OF_256)
    to[0] = (Doubles)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)floats));
    to[1] = (Doubles)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)floats, 1));
#else
    float one[2 * kWidth];
    std::memcpy(one, &floats, sizeof one);
    to[0] = widened(one);
    to[1] = widened(one + kWidth);
#endif
}

inline void widen(Doubles doubles, Doubles *to) { to[0] = doubles; }

// The smaller and the larger of each pair, of vectors and of numbers; *kept* where *value* is NaN.
template <class V> inline V lesser(V value, V kept) {
#if defined(SONDE_PORTABLE) || !defined(__GNUC__)
    if constexpr (std::is_class_v<V>) {
        for (size_t i = 0; i < sizeof value.at / sizeof value.at[0]; i++) kept.at[i] = lesser(value.at[i], kept.at[i]);
        return kept;
    } else
#endif
    return value < kept ? value : kept;
}

template <class V> inline V greater(V value, V kept) {
#if defined(SONDE_PORTABLE) || !defined(__GNUC__)
    if constexpr (std::is_class_v<V>) {
        for (size_t i = 0; i < sizeof value.at / sizeof value.at[0]; i++) kept.at[i] = greater(value.at[i], kept.at[i]);
        return kept;
    } else
#endif
    return value > kept ? value : kept;
}

// The smaller of each pair of magnitudes, of floats given as their bits, of which *kept* are without a sign already.
template <class V> inline V nearest(V bits, V kept) {
#if defined(SONDE_PORTABLE) || !defined(__GNUC__)
    if constexpr (std::is_class_v<V>) {
        for (size_t i = 0; i < sizeof bits.at / sizeof bits.at[0]; i++) kept.at[i] = nearest(bits.at[i], kept.at[i]);
        return kept;
    } else
#endif
    return lesser(V(V(bits << 1) >> 1), kept);
}

// *counts*, one more in each lane whose *value* is zero.
template <class C, class V> inline C with_zeros(C counts, V value) {
#if defined(SONDE_PORTABLE) || !defined(__GNUC__)
    for (size_t i = 0; i < sizeof value.at / sizeof value.at[0]; i++) counts.at[i] += value.at[i] == 0;
    return counts;
#else
    return counts - (value == 0);  // a true lane is -1
#endif
}

// *value* with zeros, and with NaN, in the lanes that are not finite; and one more for each lane that is finite, or is no NaN.
template <class V, class C> inline void part(V value, V &zeroed, V &voided, C &finite, C &numbers) {
#if defined(SONDE_PORTABLE) || !defined(__GNUC__)
    for (size_t i = 0; i < sizeof value.at / sizeof value.at[0]; i++) {
        const auto x = value.at[i];
        const bool is_finite = x - x == 0;
        zeroed.at[i] = is_finite ? x : 0;
        voided.at[i] = is_finite ? x : std::numeric_limits<std::remove_cv_t<decltype(x)>>::quiet_NaN();
        finite.at[i] += is_finite;
        numbers.at[i] += x == x;
    }
#else
    const C is_finite = (C)(value - value == 0);  // a true lane is -1
    zeroed = (V)((C)value & is_finite);
    voided = (V)((C)value | ~is_finite);
    finite -= is_finite;
    numbers -= (C)(value == value);
#endif
}

// *counts*, one more in each lane where the two are equal.
template <class V> inline V with_equal(V counts, V one, V other) {
#if defined(SONDE_PORTABLE) || !defined(__GNUC__)
    for (size_t i = 0; i < sizeof one.at / sizeof one.at[0]; i++) counts.at[i] += one.at[i] == other.at[i];
    return counts;
#else
    return counts - V(one == other);
#endif
}

// The sum of all lanes.
inline uint32_t sum_of(Bytes bytes) {
#if defined(SONDE_LANES_OF_512)
    const auto sums = (WideCounts)_mm512_sad_epu8((__m512i)bytes, _mm512_setzero_si512());
#elif defined(SONDE_LANES_OF_256)
    const auto sums = (WideCounts)_mm256_sad_epu8((__m256i)bytes, _mm256_setzero_si256());
#elif defined(SONDE_LANES_OF_128)
    const auto sums = (WideCounts)_mm_sad_epu8((__m128i)bytes, _mm_setzero_si128());
#else
    const Bytes sums = bytes;
#endif
    uint32_t sum = 0;
    for (size_t i = 0; i < sizeof sums / sizeof sums[0]; i++) sum += uint32_t(sums[i]);
    return sum;
}

#if defined(SONDE_LANES_OF_512)  // gcc 12 would spell the mask out first
template <> inline Counts with_zeros(Counts counts, Floats value) {
    const __mmask16 zero = _mm512_cmp_ps_mask((__m512)value, _mm512_setzero_ps(), _CMP_EQ_OQ);
    return (Counts)_mm512_mask_sub_epi32((__m512i)counts, zero, (__m512i)counts, _mm512_set1_epi32(-1));
}
constexpr int kNotFinite = 0x99;  // NaN of both kinds, infinities of both signs
template <> inline void part(Floats value, Floats &zeroed, Floats &voided, Counts &finite, Counts &numbers) {
    const __m512 given = (__m512)value;
    const __m512i one_less = _mm512_set1_epi32(-1);
    const __mmask16 is_finite = __mmask16(~_mm512_fpclass_ps_mask(given, kNotFinite));
    zeroed = (Floats)_mm512_maskz_mov_ps(is_finite, given);
    voided = (Floats)_mm512_mask_mov_ps((__m512)one_less, is_finite, given);
    finite = (Counts)_mm512_mask_sub_epi32((__m512i)finite, is_finite, (__m512i)finite, one_less);
    numbers = (Counts)_mm512_mask_sub_epi32((__m512i)numbers, _mm512_cmp_ps_mask(given, given, _CMP_ORD_Q), (__m512i)numbers, one_less);
}
template <> inline void part(Doubles value, Doubles &zeroed, Doubles &voided, WideCounts &finite, WideCounts &numbers) {
    const __m512d given = (__m512d)value;
    const __m512i one_less = _mm512_set1_epi64(-1);
    const __mmask8 is_finite = __mmask8(~_mm512_fpclass_pd_mask(given, kNotFinite));
    zeroed = (Doubles)_mm512_maskz_mov_pd(is_finite, given);
    voided = (Doubles)_mm512_mask_mov_pd((__m512d)one_less, is_finite, given);
    finite = (WideCounts)_mm512_mask_sub_epi64((__m512i)finite, is_finite, (__m512i)finite, one_less);
    numbers = (WideCounts)_mm512_mask_sub_epi64((__m512i)numbers, _mm512_cmp_pd_mask(given, given, _CMP_ORD_Q), (__m512i)numbers, one_less);
}
template <> inline Bytes with_equal(Bytes counts, Bytes one, Bytes other) {
    const __mmask64 equal = _mm512_cmpeq_epi8_mask((__m512i)one, (__m512i)other);
    return (Bytes)_mm512_mask_sub_epi8((__m512i)counts, equal, (__m512i)counts, _mm512_set1_epi8(-1));
}
template <> inline Magnitudes nearest(Magnitudes bits, Magnitudes kept) {  // one instruction
    constexpr int kAbsoluteMinimum = 0xa;
    return (Magnitudes)_mm512_maskz_range_ps(0xffff, (__m512)bits, (__m512)kept, kAbsoluteMinimum);
}
template <> inline WideCounts with_zeros(WideCounts counts, Doubles value) {
    const __mmask8 zero = _mm512_cmp_pd_mask((__m512d)value, _mm512_setzero_pd(), _CMP_EQ_OQ);
    return (WideCounts)_mm512_mask_sub_epi64((__m512i)counts, zero, (__m512i)counts, _mm512_set1_epi64(-1));
}
#endif

}  // namespace
}  // namespace lanes
