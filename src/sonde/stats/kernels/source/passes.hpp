// What is counted in one pass over memory, and the passes there are for one instruction set.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace sonde {

enum Kind : int { kDouble = 0, kFloat = 1, kBrainFloat = 2, kHalf = 3 };  // as native.py numbers them

constexpr size_t kBlock = 4096;  // elements handled at a time: they and two copies of them stay in the first cache

inline size_t size_of(Kind kind) { return kind == kDouble ? 8 : kind == kFloat ? 4 : 2; }

// A sum of the sums of blocks that keeps what rounding takes from it (Neumaier's), so that its error does not grow with them.
struct Sum {
    double value = 0, lost = 0;

    void add(double other) {
        const double sum = value + other;
        lost += std::fabs(value) >= std::fabs(other) ? (value - sum) + other : (other - sum) + value;
        value = sum;
    }
    void merge(const Sum &other) {
        add(other.value);
        lost += other.lost;
    }
    double total() const { return std::isfinite(lost) ? value + lost : value; }  // not where it overflowed
};

// Sums of distances from a number near the elements, the pivot: a variance that is formed of them does not cancel.
struct Offsets {
    uint64_t count = 0;
    double pivot = std::numeric_limits<double>::infinity();  // as long as there are no elements
    Sum sum, squares;

    void lower(double other) {
        if (!(other < pivot)) return;
        const double by = pivot - other, n = double(count);
        pivot = other;
        if (!count) return;
        const double moved = n * by;
        squares.add(by * (2 * sum.total() + moved));
        sum.add(moved);
    }
    void merge(Offsets other) {
        lower(other.pivot);
        other.lower(pivot);
        count += other.count;
        sum.merge(other.sum);
        squares.merge(other.squares);
    }
};

struct Moments {
    bool spread;  // whether offsets are wanted
    uint64_t nan = 0, inf = 0, zeros = 0;
    bool has_zeros = false, is_spoiled = false;  // whether the last block had any zeros, or NaN or infinities
    Sum sum, squares;
    Offsets offsets;
    double low = std::numeric_limits<double>::infinity(), high = -std::numeric_limits<double>::infinity();

    explicit Moments(bool with_spread) : spread(with_spread) {}

    void add(const Moments &other) {  // all but the offsets
        nan += other.nan;
        inf += other.inf;
        zeros += other.zeros;
        has_zeros = other.has_zeros;
        sum.merge(other.sum);
        squares.merge(other.squares);
        low = other.low < low ? other.low : low;
        high = other.high > high ? other.high : high;
    }
    void merge(const Moments &other) {
        add(other);
        offsets.merge(other.offsets);
    }
};

inline Moments empty_like(const Moments &seen) { return Moments(seen.spread); }

// The row of ExponentHistogram, whose docstring describes it.
enum Place : int { kZero = 0, kNan = 1, kInf = 2, kNegative = 3, kOver = 4, kBelow = 8, kAbove = 287, kPlaces = 288 };

struct Exponents {
    uint64_t places[kPlaces] = {};

    void merge(const Exponents &other) {
        for (int i = 0; i < kPlaces; i++) places[i] += other.places[i];
    }
};

// A dense tensor by channels: its elements are *outer* times, for each channel in turn, *inner* of that channel.
struct Channels { size_t outer, channels, inner; };

// Of each channel, how many elements are NaN, infinite or of a magnitude above a limit, and how many are NaN or infinite.
struct ChannelCounts {
    uint32_t *above, *spoiled;
    uint64_t nan;
};

// Each adds n adjacent elements, or the differences between them and n others as doubles. No thread is started and nothing is
// allocated.
struct Passes {
    const char *name;
    void (*moments)(Kind, const void *data, const void *minus, size_t n, Moments &into);
    void (*exponents)(Kind, const void *data, const void *minus, size_t n, Exponents &into);
    // The elements (if inner is 1, the runs of one element of each channel) *first* to *end*.
    void (*activation)(Kind, const void *data, const Channels &, size_t first, size_t end, double eps, ChannelCounts &into);
};

}  // namespace sonde
