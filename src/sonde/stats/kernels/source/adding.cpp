// How a tensor is added to the row of a statistic: long passes run without the GIL and on several threads; every row is written
// with the GIL held, so that threads may add to the same row at the same time.

#include "adding.hpp"

#include <cstdlib>
#include <cstring>

#include "threads.hpp"

namespace sonde {
namespace {

// Calls pass(first, end, part) for all of *count* units, which hold *view*'s elements.
template <class Into, class Pass> void pass_over(const View &view, size_t count, size_t grain, Into &into, Pass pass) {
    if (view.count < kAlone) {
        pass(size_t(0), count, into);
        return;
    }
    Py_BEGIN_ALLOW_THREADS
    reduce(count, grain, threads_for(view.count, view.threads), into, pass);
    Py_END_ALLOW_THREADS
}

template <class Into> bool sum_up(const View &view, void (*pass)(Kind, const void *, const void *, size_t, Into &), Into &into) {
    const Layout layout(view);
    const bool dense = layout.dense();
    if (view.minus && !dense) return false;  // only one tensor is walked through
    pass_over(view, view.count, 64, into, [&](size_t first, size_t end, Into &part) {
        if (dense) {
            const size_t offset = first * layout.item;
            pass(view.kind, view.data + offset, view.minus ? view.minus + offset : nullptr, end - first, part);
        } else {
            layout.walk(first, end, [&](const void *at, size_t elements) { pass(view.kind, at, nullptr, elements, part); });
        }
    });
    return true;
}

enum Field : int { kOffsets = 6, kSquaredOffsets, kMinimum, kPivot, kMaximum, kMoments };  // of a row of Moments, after six sums

void lower_pivot(double *row, double pivot) {
    const double finite = row[0] - row[1] - row[2], by = row[kPivot] - pivot;
    if (!(by > 0)) return;
    row[kPivot] = pivot;
    if (!(finite > 0)) return;
    const double moved = finite * by;
    row[kSquaredOffsets] += by * (2 * row[kOffsets] + moved);
    row[kOffsets] += moved;
}

void align_moments(double *row, const double *other) { lower_pivot(row, other[kPivot]); }

bool add_moments(double *row, const View &view, PyObject *) {
    Moments seen(true);
    if (!sum_up(view, passes->moments, seen)) return false;
    lower_pivot(row, seen.offsets.pivot);
    seen.offsets.lower(row[kPivot]);
    row[0] += double(view.count);
    row[1] += double(seen.nan);
    row[2] += double(seen.inf);
    row[3] += double(seen.zeros);
    row[4] += seen.sum.total();
    row[5] += seen.squares.total();
    row[kOffsets] += seen.offsets.sum.total();
    row[kSquaredOffsets] += seen.offsets.squares.total();
    row[kMinimum] = seen.low < row[kMinimum] ? seen.low : row[kMinimum];
    row[kMaximum] = seen.high > row[kMaximum] ? seen.high : row[kMaximum];
    return true;
}

bool add_norm(double *row, const View &view, PyObject *) {
    Moments seen(false);
    if (!sum_up(view, passes->moments, seen)) return false;
    row[0] += double(view.count);
    row[1] += double(seen.nan);
    row[2] += double(seen.inf);
    row[3] += seen.squares.total();
    return true;
}

bool add_exponents(double *row, const View &view, PyObject *) {
    Exponents seen;
    if (!sum_up(view, passes->exponents, seen)) return false;
    for (int i = 0; i < kPlaces; i++) row[i] += double(seen.places[i]);
    return true;
}

// Counts of each channel in memory of their own: none where it cannot be had.
struct Counted {
    size_t channels;
    ChannelCounts counts;

    explicit Counted(size_t number) : channels(number), counts{static_cast<uint32_t *>(std::calloc(2 * number, sizeof(uint32_t))), nullptr, 0} {
        if (counts.above) counts.spoiled = counts.above + channels;
    }
    Counted(const Counted &) = delete;
    Counted &operator=(const Counted &) = delete;
    ~Counted() { std::free(counts.above); }

    void merge(const Counted &other) {
        if (!counts.above || !other.counts.above) {
            std::free(counts.above);
            counts.above = nullptr;
            return;
        }
        for (size_t i = 0; i < 2 * channels; i++) counts.above[i] += other.counts.above[i];  // both kinds: they adjoin
        counts.nan += other.counts.nan;
    }
};

[[maybe_unused]] Counted empty_like(const Counted &counted) { return Counted(counted.channels); }

// The channels of a dense tensor, whatever the order of its dimensions in memory. A tensor without that axis is one channel.
Channels channels_of(const View &view, long axis) {
    if (axis < 0) axis += view.rank;
    if (axis < 0 || axis >= view.rank || view.shape[axis] == 1) return {1, 1, view.count};
    const size_t channels = size_t(view.shape[axis]), inner = size_t(view.strides[axis]);
    return {view.count / channels / inner, channels, inner};
}

bool add_activation(double *row, const View &view, PyObject *arguments) {
    double eps;
    long axis;
    if (!PyArg_ParseTuple(arguments, "dl", &eps, &axis)) return false;
    if (view.minus || !Layout(view).dense()) return false;
    const Channels shape = channels_of(view, axis);
    const size_t each = view.count / shape.channels;
    if (each > UINT32_MAX) return false;
    Counted counted(shape.channels);
    const bool by_row = shape.inner == 1;
    const auto pass = passes->activation;
    pass_over(view, by_row ? shape.outer : view.count, by_row ? 1 : 64, counted, [&](size_t first, size_t end, Counted &part) {
        if (part.counts.above) pass(view.kind, view.data, shape, first, end, eps, part.counts);
    });
    const ChannelCounts &counts = counted.counts;
    if (!counts.above) return false;
    uint64_t above = 0, spoiled = 0, silent = 0;
    for (size_t c = 0; c < shape.channels; c++) {
        above += counts.above[c];
        spoiled += counts.spoiled[c];
        silent += counts.above[c] == 0;
    }
    size_t judged = shape.channels;
    Sum rates;
    if (spoiled == 0) {
        rates.add(double(above) / double(each));  // all have the same denominator
    } else {
        for (size_t c = 0; c < shape.channels; c++) {
            const size_t finite = each - counts.spoiled[c];
            if (finite) rates.add(double(counts.above[c] - counts.spoiled[c]) / double(finite));
            else judged--;
        }
    }
    row[0] += double(counts.nan);
    row[1] += double(spoiled - counts.nan);
    row[2] += double(above - spoiled);
    row[3] += double(view.count - above);
    if (judged) {
        row[4] += 1;
        row[5] += rates.total() / double(judged);
        row[6] += double(silent) / double(shape.channels);
    }
    return true;
}

}  // namespace

const Reduction reductions[kReductions] = {
    {"moments", add_moments, kMinimum, align_moments},
    {"exponents", add_exponents, kPlaces, nullptr},
    {"norm", add_norm, 4, nullptr},
    {"activation", add_activation, 7, nullptr},
};

void merge_rows(double *row, const double *other, Py_ssize_t sums, Py_ssize_t minima, Py_ssize_t maxima, const Reduction *reduction) {
    double aligned[kMostAligned + 1];
    if (reduction && reduction->align) {
        const Py_ssize_t led = sums - reduction->sums;
        std::memcpy(aligned, other, size_t(sums + minima + maxima) * sizeof(double));
        reduction->align(row + led, aligned + led);
        reduction->align(aligned + led, row + led);
        other = aligned;
    }
    Py_ssize_t i = 0;
    for (; i < sums; i++) row[i] += other[i];
    for (; i < sums + minima; i++) row[i] = other[i] < row[i] ? other[i] : row[i];
    for (; i < sums + minima + maxima; i++) row[i] = other[i] > row[i] ? other[i] : row[i];
}

}  // namespace sonde
