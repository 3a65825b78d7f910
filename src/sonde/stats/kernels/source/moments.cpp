// Moments of adjacent elements. Compiled once for each instruction set, LEVEL.
//
// All sums are formed in double. The square of a float is exact there and cannot overflow, so a block's sum of squares is
// finite exactly if all of its elements are: the fast pass needs no masks, and a block that fails is cleaned and passed again.

#include "elements.hpp"

namespace sonde {
namespace {

using namespace lanes;

// How many squares are added up in one lane before the sum is put aside. The square of a float has up to 48 bits, so a sum of
// more than 2**5 is rounded; and squares of odd numbers all end in 001, so from 2**6 on nearly all roundings go down.
constexpr size_t kChain = 64;

struct Sums { double sum, squares; };

template <class V> double total(const V *vectors, int count) {
    V sum = vectors[0];
    for (int i = 1; i < count; i++) sum += vectors[i];
    double made = 0;
    for (int i = 0; i < kWidth; i++) made += sum[i];
    return made;
}

// Sums of *x*, and extremes and zeros of *y*, in one loop: they are the same memory unless a block had to be cleaned. *source*
// fills them as the loop goes. A NaN in *y* counts for nothing.
template <class T, class Source>
Sums pass(const Source &source, typename T::Element *x, const typename T::Element *y, size_t n, Moments &into) {
    using Element = typename T::Element;
    using Vector = typename T::Vector;
    constexpr int kUnroll = 2, kPer = sizeof(Vector) / sizeof(Element), kHalves = kPer / kWidth;
    constexpr size_t kStep = kUnroll * kPer, kAhead = 8192 / sizeof(Element);
    constexpr int kSums = kUnroll * kHalves;
    Doubles sum[kSums] = {}, squares[kSums] = {};
    Element least = std::numeric_limits<Element>::infinity(), most = -least;
    Vector low[kUnroll], high[kUnroll];
    typename T::Zeros zeros[kUnroll] = {};
    for (int u = 0; u < kUnroll; u++) {
        low[u] = filled<Vector>(least);
        high[u] = filled<Vector>(most);
    }
    size_t k = 0;
    if (n >= kStep) source.feed(0, x);
    while (k + kStep <= n) {
        Doubles chain[kSums] = {}, chain_of_squares[kSums] = {};
        const size_t whole = (n - k) / kStep * kStep, end = k + (whole < kChain * kStep ? whole : kChain * kStep);
        for (; k < end; k += kStep) {
            if (k + 2 * kStep <= n) source.feed(k + kStep, x);  // one step ahead, so that no load waits for its store
            for (int u = 0; u < kUnroll; u++) {
                const size_t at = k + u * kPer;
                prefetch(x + at + kAhead);
                for (int half = 0; half < kHalves; half++) {
                    const Doubles value = T::widened(x + at + half * kWidth);
                    chain[u * kHalves + half] += value;
                    chain_of_squares[u * kHalves + half] += value * value;
                }
                const Vector value = load<Vector>(y + at);
                low[u] = lesser(value, low[u]);
                high[u] = greater(value, high[u]);
                zeros[u] = with_zeros(zeros[u], value);
            }
        }
        for (int i = 0; i < kSums; i++) {
            sum[i] += chain[i];
            squares[i] += chain_of_squares[i];
        }
    }
    Sums made = {total(sum, kSums), total(squares, kSums)};
    low[0] = lesser(low[1], low[0]);
    high[0] = greater(high[1], high[0]);
    zeros[0] += zeros[1];
    uint64_t zero = 0;
    for (int i = 0; i < kPer; i++) {
        least = low[0][i] < least ? low[0][i] : least;
        most = high[0][i] > most ? high[0][i] : most;
        zero += uint64_t(zeros[0][i]);
    }
    source.rest(k, n, x);
    for (; k < n; k++) {
        const double value = x[k];
        made.sum += value;
        made.squares += value * value;
        least = y[k] < least ? y[k] : least;
        most = y[k] > most ? y[k] : most;
        zero += y[k] == 0;
    }
    into.zeros += zero;
    into.low = least < into.low ? least : into.low;
    into.high = most > into.high ? most : into.high;
    return made;
}

// Up to this part of the sum of squares, a sum of squares of distances from the pivot is passed for, not derived: a derived one is
// off by the rounding of the terms that cancel.
constexpr double kCancelled = 0x1p-12;

// Sums of the distances of finite elements from *pivot*.
template <class T> Sums pass_offsets(const typename T::Element *x, size_t n, double pivot) {
    constexpr int kUnroll = 4;
    constexpr size_t kStep = kUnroll * kWidth;
    const Doubles from = filled<Doubles>(pivot);
    Doubles sum[kUnroll] = {}, squares[kUnroll] = {};
    size_t k = 0;
    while (k + kStep <= n) {
        Doubles chain[kUnroll] = {}, chain_of_squares[kUnroll] = {};
        const size_t whole = (n - k) / kStep * kStep, end = k + (whole < kChain * kStep ? whole : kChain * kStep);
        for (; k < end; k += kStep) {
            for (int u = 0; u < kUnroll; u++) {
                const Doubles offset = T::widened(x + k + u * kWidth) - from;
                chain[u] += offset;
                chain_of_squares[u] += offset * offset;
            }
        }
        for (int u = 0; u < kUnroll; u++) {
            sum[u] += chain[u];
            squares[u] += chain_of_squares[u];
        }
    }
    Sums made = {total(sum, kUnroll), total(squares, kUnroll)};
    for (; k < n; k++) {
        const double offset = double(x[k]) - pivot;
        made.sum += offset;
        made.squares += offset * offset;
    }
    return made;
}

// The offsets of a block whose other moments are *seen*, from the pivot of all blocks before, or from the mean of this one.
template <class T>
void add_offsets(typename T::Element *x, size_t n, const Sums &sums, const Moments &seen, Offsets &into) {
    using Element = typename T::Element;
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
        if (spoiled) {
            Element kept[kBlock];
            size_t number = 0;
            for (size_t i = 0; i < n; i++) {
                kept[number] = x[i];
                number += x[i] - x[i] == 0;
            }
            made = pass_offsets<T>(kept, number, pivot);
        } else {
            made = pass_offsets<T>(x, n, pivot);
        }
    }
    into.count += n - spoiled;
    into.sum.add(made.sum);
    into.squares.add(made.squares);
}

// At most kBlock elements.
template <class T, class Source> void add_block(const Source &source, typename T::Element *x, size_t n, Moments &into) {
    using Element = typename T::Element;
    Moments seen(false);
    Sums sums = pass<T>(source, x, x, n, seen);
    if (!std::isfinite(sums.squares)) {  // NaN, infinity, or a double beyond 1e154
        Element zeroed[kBlock], voided[kBlock];
        uint32_t nan = 0, spoiled = 0;
        for (size_t i = 0; i < n; i++) {
            const bool finite = x[i] - x[i] == 0;
            nan += x[i] != x[i];
            spoiled += !finite;
            zeroed[i] = finite ? x[i] : Element(0);
            voided[i] = finite ? x[i] : std::numeric_limits<Element>::quiet_NaN();
        }
        seen = Moments(false);
        seen.nan = nan;
        seen.inf = spoiled - nan;
        sums = pass<T>(AsTheyAre(), zeroed, voided, n, seen);
    }
    seen.sum.add(sums.sum);
    seen.squares.add(sums.squares);
    if (into.spread) add_offsets<T>(x, n, sums, seen, into.offsets);
    into.add(seen);
}

void moments(Kind kind, const void *data, const void *minus, size_t n, Moments &into) {
    if (minus) {
        each_difference(kind, data, minus, n, [&](double *made, size_t length) {
            add_block<OfDoubles>(AsTheyAre(), made, length, into);
        });
        return;
    }
    float buffer[kBlock];
    for (size_t k = 0; k < n; k += kBlock) {
        const size_t length = n - k < kBlock ? n - k : kBlock;
        const char *at = static_cast<const char *>(data) + k * size_of(kind);
        switch (kind) {
            case kDouble: add_block<OfDoubles>(AsTheyAre(), (double *)at, length, into); break;
            case kFloat: add_block<OfFloats>(AsTheyAre(), (float *)at, length, into); break;
            case kBrainFloat: add_block<OfFloats>(BrainFloats{(const uint16_t *)at}, buffer, length, into); break;
            case kHalf: add_block<OfFloats>(Halves{(const uint16_t *)at}, buffer, length, into); break;
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
