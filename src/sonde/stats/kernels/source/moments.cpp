// Moments of adjacent elements. Compiled once for each instruction set, LEVEL.
//
// All sums are formed in double. The square of a float is exact there and cannot overflow, so a block's sum of squares is
// finite exactly if all of its elements are: the fast pass needs no masks, and a block that fails is passed again, with masks.

#include "elements.hpp"

namespace sonde {
namespace {

using namespace lanes;

// How many squares are added up in one lane before the sum is put aside. The square of a float has up to 48 bits, so a sum of
// more than 2**5 is rounded; and squares of odd numbers all end in 001, so from 2**6 on nearly all roundings go down.
//
// So an element goes through at most 63 roundings in its chain, one for each further chain and each element behind the last step
// (63 + 3 with the narrowest vectors, 7 + 31 with the widest), 5 across the lanes, 1 for its square if it is a double, and 2 in a
// Sum: less than the 150 that the docstring of Moments promises.
constexpr size_t kChain = 64;

constexpr size_t kLong = 4 * kBlock;  // elements handled at a time

struct Sums { double sum, squares; };

// The numbers in the lanes of *count* vectors, all of them joined by *join*, pair by pair.
template <class T, class V, class Join> T across(V *vectors, int count, Join join) {
    for (int left = count / 2; left; left /= 2) {
        for (int i = 0; i < left; i++) vectors[i] = join(vectors[i], vectors[i + left]);
    }
    constexpr int kLanes = sizeof(V) / sizeof(T);
    T lane[kLanes];
    std::memcpy(lane, vectors, sizeof lane);
    #pragma GCC unroll 6
    for (int left = kLanes / 2; left; left /= 2) {
        #pragma GCC unroll 32
        for (int i = 0; i < left; i++) lane[i] = join(lane[i], lane[i + left]);
    }
    return lane[0];
}

struct Added { template <class V> V operator()(V one, V other) const { one += other; return one; } };
struct Lesser { template <class V> V operator()(V one, V other) const { return lesser(one, other); } };
struct Greater { template <class V> V operator()(V one, V other) const { return greater(one, other); } };

// The extremes and zeros of floats or doubles. A NaN counts for nothing.
template <class T> struct Extremes {
    using Element = typename T::Element;
    using Vector = typename T::Vector;
    static constexpr int kPer = sizeof(Vector) / sizeof(Element), kUnroll = T::kStep / kPer;

    const Element *from;
    Element least = std::numeric_limits<Element>::infinity(), most = -least;
    Vector low[kUnroll] = {filled<Vector>(least), filled<Vector>(least)}, high[kUnroll] = {filled<Vector>(most), filled<Vector>(most)};
    typename T::Zeros zeros[kUnroll] = {};
    uint64_t zero = 0;

    explicit Extremes(const void *elements) : from(static_cast<const Element *>(elements)) {}

    void see(size_t at) {
        for (int u = 0; u < kUnroll; u++) see(load<Vector>(from + at + u * kPer), u);
    }

    void see(Vector value, int u) {
        low[u] = lesser(value, low[u]);
        high[u] = greater(value, high[u]);
        zeros[u] = with_zeros(zeros[u], value);
    }

    void finish(size_t k, size_t n, Moments &into) {
        least = across<Element>(low, kUnroll, Lesser());
        most = across<Element>(high, kUnroll, Greater());
        zero = uint64_t(across<typename T::Zero>(zeros, kUnroll, Added()));
        for (; k < n; k++) {
            least = from[k] < least ? from[k] : least;
            most = from[k] > most ? from[k] : most;
            zero += from[k] == 0;
        }
        into.zeros += zero;
        into.has_zeros = zero != 0;
        into.low = least < into.low ? least : into.low;
        into.high = most > into.high ? most : into.high;
    }
};

// The same of elements with *Word* as bits, none of them NaN, by comparing integers: of bits with a sign, the greatest is that of
// the greatest element of positive sign, or of the least element of all. As long as there are elements of both signs, the two
// greatest are the extremes; otherwise the least magnitude is one of them. It also tells whether there is a zero to be counted.
template <class Word, class Signed, float (*element)(Word)> struct ExtremesOfBits {
    static constexpr int kRegisters = sizeof(Word) / 2, kPer = 8 * kWidth / sizeof(Word);
    static constexpr Word kSign = Word(1) << (8 * sizeof(Word) - 1);
    using Words = Lanes<Word, kPer>;
    using SignedWords = Lanes<Signed, kPer>;

    const Word *from;
    Words most[kRegisters] = {}, least[kRegisters];
    SignedWords high[kRegisters];

    explicit ExtremesOfBits(const void *elements) : from(static_cast<const Word *>(elements)) {
        for (int r = 0; r < kRegisters; r++) {
            least[r] = filled<Words>(Word(kSign - 1));
            high[r] = filled<SignedWords>(Signed(kSign));
        }
    }

    void see(size_t at) {
        for (int r = 0; r < kRegisters; r++) {
            most[r] = greater(load<Words>(from + at + r * kPer), most[r]);
            high[r] = greater(load<SignedWords>(from + at + r * kPer), high[r]);
            least[r] = nearest(load<Words>(from + at + r * kPer), least[r]);
        }
    }

    void finish(size_t k, size_t n, Moments &into) {
        Word one = across<Word>(most, kRegisters, Greater()), magnitude = across<Word>(least, kRegisters, Lesser());
        Signed other = across<Signed>(high, kRegisters, Greater());
        for (size_t i = k; i < n; i++) {
            one = greater(bits(i), one);
            other = greater(Signed(bits(i)), other);
            magnitude = nearest(bits(i), magnitude);
        }
        const bool some_negative = one & kSign, some_positive = other >= 0;
        const double low = element(some_negative ? one : magnitude), high = element(some_positive ? Word(other) : Word(magnitude | kSign));
        into.low = low < into.low ? low : into.low;
        into.high = high > into.high ? high : into.high;
        into.has_zeros = magnitude == 0;
        if (into.has_zeros) into.zeros += zeros(n);
    }

    Word bits(size_t i) const {
        Word made;
        std::memcpy(&made, from + i, sizeof made);
        return made;
    }

    uint64_t zeros(size_t n) const {
        uint64_t made = 0;
        for (size_t k = 0; k < n; k += kBlock) {
            const size_t end = n - k < kBlock ? n : k + kBlock;
            Word count = 0;
            for (size_t i = k; i < end; i++) count = Word(count + ((bits(i) & Word(kSign - 1)) == 0));
            made += count;
        }
        return made;
    }
};

// Calls visit(first step, end, sums, squares) for the steps of *n* elements: a visit adds up few enough numbers for one chain.
// Returns the two sums of all that was added; if *kStops*, of the first chain alone where its sum of squares is not finite.
template <int kStep, int kSums, bool kStops = false, class Visit> Sums in_chains(size_t n, Visit visit) {
    Doubles sum[kSums] = {}, squares[kSums] = {};
    for (size_t k = 0, whole = n / kStep * kStep; k < whole;) {
        Doubles chain[kSums] = {}, chain_of_squares[kSums] = {};
        const size_t end = whole - k < kChain * kStep ? whole : k + kChain * kStep;
        for (; k < end; k += kStep) visit(k, chain, chain_of_squares);
        for (int i = 0; i < kSums; i++) {
            sum[i] += chain[i];
            squares[i] += chain_of_squares[i];
        }
        if (kStops && k == kChain * kStep && !std::isfinite(across<double>(chain_of_squares, kSums, Added()))) break;
    }
    return {across<double>(sum, kSums, Added()), across<double>(squares, kSums, Added())};
}

constexpr size_t kAhead = 8192;  // bytes

// Sums of elements, and their extremes and zeros, in one loop. If the sum of squares is not finite, nothing of it can be used.
template <class Extremes, class Source> Sums pass(const Source &source, size_t n, Moments &into) {
    constexpr int kStep = Source::kStep, kSums = kStep / kWidth;
    constexpr size_t kBytes = sizeof(*source.from), kLine = 64;
    Extremes extremes(source.from);
    Sums made = in_chains<kStep, kSums, true>(n, [&](size_t k, Doubles *sum, Doubles *squares) {
        for (size_t at = 0; at < kStep * kBytes; at += kLine) prefetch((const char *)(source.from + k) + at + kAhead);
        for (int i = 0; i < kSums; i += Source::kRead) {
            Doubles value[Source::kRead];
            source.read(k + i * kWidth, value);
            for (int j = 0; j < Source::kRead; j++) {
                sum[i + j] += value[j];
                squares[i + j] += value[j] * value[j];
            }
        }
        extremes.see(k);
    });
    if (!std::isfinite(made.squares)) return made;
    const size_t rest = n / kStep * kStep;
    extremes.finish(rest, n, into);
    for (size_t k = rest; k < n; k++) {
        const double value = source[k];
        made.sum += value;
        made.squares += value * value;
    }
    return made;
}

// Up to this part of the sum of squares, a sum of squares of distances from the pivot is passed for, not derived: a derived one is
// off by the rounding of the terms that cancel.
constexpr double kCancelled = 0x1p-12;

// Sums of the distances of finite elements from *pivot*.
template <class Source> Sums pass_offsets(const Source &source, size_t n, double pivot) {
    constexpr int kStep = Source::kStep, kSums = kStep / kWidth;
    const Doubles from = filled<Doubles>(pivot);
    Sums made = in_chains<kStep, kSums>(n, [&](size_t k, Doubles *sum, Doubles *squares) {
        for (int i = 0; i < kSums; i += Source::kRead) {
            Doubles value[Source::kRead];
            source.read(k + i * kWidth, value);
            for (int j = 0; j < Source::kRead; j++) {
                const Doubles offset = value[j] - from;
                sum[i + j] += offset;
                squares[i + j] += offset * offset;
            }
        }
    });
    for (size_t k = n / kStep * kStep; k < n; k++) {
        const double offset = double(source[k]) - pivot;
        made.sum += offset;
        made.squares += offset * offset;
    }
    return made;
}

// The same kind of elements as *Source* reads, in memory as floats or doubles.
template <class Source> using Copied = std::conditional_t<sizeof(typename Source::Element) == sizeof(double), OfDoubles, OfFloats>;

// The same where not all of *n* elements are finite.
template <class Source> Sums pass_offsets_of_finite(const Source &source, size_t n, double pivot) {
    typename Source::Element kept[kBlock];
    Sums made = {0, 0};
    for (size_t i = 0; i < n;) {
        size_t number = 0;
        for (const size_t end = n - i < kBlock ? n : i + kBlock; i < end; i++) {
            const auto x = source[i];
            kept[number] = x;
            number += x - x == 0;
        }
        const Sums some = pass_offsets(Copied<Source>(kept), number, pivot);
        made.sum += some.sum;
        made.squares += some.squares;
    }
    return made;
}

// The offsets of a block whose other moments are *seen*, from the pivot of all blocks before, or from the mean of this one.
template <class Source> void add_offsets(const Source &source, size_t n, const Sums &sums, const Moments &seen, Offsets &into) {
    const size_t spoiled = seen.nan + seen.inf;
    if (spoiled == n) return;
    const double count = double(n - spoiled);
    if (!into.count) {
        const double mean = sums.sum / count;
        into.pivot = !(mean >= seen.low) ? seen.low : mean > seen.high ? seen.high : mean;  // exact if all elements are equal
    }
    const double pivot = into.pivot, of_pivot = count * pivot;
    Sums made = {sums.sum - of_pivot, sums.squares - pivot * (2 * sums.sum - of_pivot)};
    if (!(made.squares >= kCancelled * (sums.squares + pivot * of_pivot) && std::isfinite(made.squares))) {
        made = spoiled ? pass_offsets_of_finite(source, n, pivot) : pass_offsets(source, n, pivot);
    }
    into.count += n - spoiled;
    into.sum.add(made.sum);
    into.squares.add(made.squares);
}

template <class Source> void finish_block(const Source &source, size_t n, const Sums &sums, Moments &seen, Moments &into) {
    seen.sum.add(sums.sum);
    seen.squares.add(sums.squares);
    if (into.spread) add_offsets(source, n, sums, seen, into.offsets);
    into.add(seen);
}

// Adds elements with NaN, infinities, or doubles beyond 1e154 among them, at most kLong: in one loop as well, which parts them.
template <class Source> void add_spoiled(const Source &source, size_t n, Moments &into) {
    using T = Copied<Source>;
    using Element = typename T::Element;
    using Vector = typename T::Vector;
    constexpr int kStep = T::kStep, kUnroll = 2, kPer = kStep / kUnroll, kSums = kStep / kWidth, kParts = kSums / kUnroll;
    static_assert(kStep == Source::kStep && sizeof(Vector) == kPer * sizeof(Element), "the same steps");
    Moments seen(into.spread);
    Extremes<T> extremes(nullptr);
    typename T::Zeros finite[kUnroll] = {}, numbers[kUnroll] = {};
    Sums sums = in_chains<kStep, kSums>(n, [&](size_t k, Doubles *sum, Doubles *squares) {
        for (int u = 0; u < kUnroll; u++) {
            Vector zeroed, voided;
            Doubles value[kParts];
            part(source.vector(k + u * kPer), zeroed, voided, finite[u], numbers[u]);
            extremes.see(voided, u);
            widen(zeroed, value);
            for (int j = 0; j < kParts; j++) {
                sum[u * kParts + j] += value[j];
                squares[u * kParts + j] += value[j] * value[j];
            }
        }
    });
    const size_t rest = n / kStep * kStep;
    uint64_t kept = uint64_t(across<typename T::Zero>(finite, kUnroll, Added()));
    uint64_t not_nan = uint64_t(across<typename T::Zero>(numbers, kUnroll, Added()));
    Element last[kStep];
    size_t number = 0;
    for (size_t k = rest; k < n; k++) {
        const Element x = source[k];
        not_nan += x == x;
        if (!(x - x == 0)) continue;
        last[number++] = x;
        sums.sum += x;
        sums.squares += double(x) * double(x);
    }
    extremes.from = last;
    extremes.finish(0, number, seen);
    kept += number;
    seen.nan = n - not_nan;
    seen.inf = not_nan - kept;
    finish_block(source, n, sums, seen, into);
}

// Elements of which those before were not all finite are parted at once, until there is nothing to part.
template <class Extremes, class Source> void add_block(const Source &source, size_t n, Moments &into) {
    if (!into.is_spoiled) {
        Moments seen(into.spread);
        const Sums sums = pass<Extremes>(source, n, seen);
        if (std::isfinite(sums.squares)) {
            finish_block(source, n, sums, seen, into);
            return;
        }
    }
    const uint64_t before = into.nan + into.inf;
    add_spoiled(source, n, into);
    into.is_spoiled = into.nan + into.inf != before;
}

#if defined(SONDE_LANES_OF_512) || defined(SONDE_LANES_OF_256)  // all integers are compared in one instruction
constexpr bool kComparesBits = true;
#else
constexpr bool kComparesBits = false;
#endif

template <class Source> void add_halves(const Source &source, size_t n, Moments &into) {
    if (kComparesBits) {
        add_block<ExtremesOfBits<uint16_t, int16_t, Source::one>>(source, n, into);
    } else {
        float buffer[kBlock];
        for (size_t k = 0; k < n; k += kBlock) {
            const size_t length = n - k < kBlock ? n - k : kBlock;
            convert(source.after(k), buffer, length);
            add_block<Extremes<OfFloats>>(OfFloats(buffer), length, into);
        }
    }
}

void moments(Kind kind, const void *data, const void *minus, size_t n, Moments &into) {
    if (minus) {
        each_difference(kind, data, minus, n, [&](const double *made, size_t length) {
            add_block<Extremes<OfDoubles>>(OfDoubles(made), length, into);
        });
        return;
    }
    for (size_t k = 0; k < n; k += kLong) {
        const size_t length = n - k < kLong ? n - k : kLong;
        const void *at = static_cast<const char *>(data) + k * size_of(kind);
        const OfFloats floats(static_cast<const float *>(at));
        const auto *words = static_cast<const uint16_t *>(at);
        switch (kind) {
            case kDouble: add_block<Extremes<OfDoubles>>(OfDoubles(static_cast<const double *>(at)), length, into); break;
            case kBrainFloat: add_halves(BrainFloats(words), length, into); break;
            case kHalf: add_halves(Halves(words), length, into); break;
            case kFloat:
                if (kComparesBits && !into.has_zeros) add_block<ExtremesOfBits<uint32_t, int32_t, float_of>>(floats, length, into);
                else add_block<Extremes<OfFloats>>(floats, length, into);
                break;
        }
    }
}

}  // namespace

namespace LEVEL {
void exponents(Kind, const void *, const void *, size_t, Exponents &);
void activation(Kind, const void *, const Channels &, size_t, size_t, double, ChannelCounts &);
extern const Passes passes;
const Passes passes = {LEVEL_NAME, moments, exponents, activation};
}  // namespace LEVEL

}  // namespace sonde
