// A strided tensor as chunks of adjacent elements, in the order of memory rather than of indices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "passes.hpp"

namespace sonde {

constexpr int kMostDimensions = 64;    // as in torch
constexpr size_t kAlone = 1 << 16;     // fewer elements are passed over with the GIL held: releasing it could cost more

// A tensor as memory: at least one element. Shape and strides, in elements, are borrowed.
struct View {
    Kind kind;
    const char *data, *minus;  // minus: what is subtracted, of the same kind, shape and strides; or null
    size_t count;
    int rank;
    const int64_t *shape, *strides;
    long threads;  // that a large one may be split among
};

struct Dimension { int64_t size, stride; };

struct Layout {
    const char *data = nullptr;
    size_t item = 1, count = 0;
    int dimensions = 0;
    Dimension dimension[kMostDimensions];

    explicit Layout(const View &view) : data(view.data), item(size_of(view.kind)), count(view.count) {
        for (int i = 0; i < view.rank; i++) {
            if (view.shape[i] != 1) dimension[dimensions++] = {view.shape[i], view.strides[i]};
        }
        settle();
    }

    // Whether the elements are adjacent, in whatever order.
    bool dense() const { return dimensions == 1 && dimension[0].stride == 1; }

    // Calls visit(pointer, elements) for chunks that together are the elements *first* to *end*.
    template <class Visit> void walk(size_t first, size_t end, Visit visit) const {
        const Dimension inner = dimension[dimensions - 1];
        int64_t at[kMostDimensions];
        const char *row = place(first / inner.size, at);
        size_t column = first % inner.size, held = 0;
        alignas(64) char buffer[kBlock * sizeof(double)];
        for (size_t done = first; done < end;) {
            size_t run = inner.size - column < end - done ? inner.size - column : end - done;
            const bool adjacent = inner.stride == 1;
            if (adjacent && run >= kDirect) {
                visit(row + column * item, run);
            } else {
                run = run < kBlock - held ? run : kBlock - held;
                gather(row + int64_t(column) * inner.stride * int64_t(item), inner.stride, run, buffer + held * item);
                held += run;
                if (held == kBlock) {
                    visit(buffer, held);
                    held = 0;
                }
            }
            done += run;
            column += run;
            if (column == size_t(inner.size)) {
                column = 0;
                row = next(row, at);
            }
        }
        if (held) visit(buffer, held);
    }

  private:
    // Sorts dimensions by stride, the widest first (repetition, stride 0, before all), and joins those that adjoin.
    void settle() {
        for (int i = 1; i < dimensions; i++) {
            const Dimension moved = dimension[i];
            int k = i;
            for (; k > 0 && before(moved, dimension[k - 1]); k--) dimension[k] = dimension[k - 1];
            dimension[k] = moved;
        }
        int last = 0;
        for (int i = 1; i < dimensions; i++) {
            Dimension &outer = dimension[last];
            if (outer.stride == dimension[i].stride * dimension[i].size) {
                outer = {outer.size * dimension[i].size, dimension[i].stride};
            } else {
                dimension[++last] = dimension[i];
            }
        }
        if (dimensions == 0) dimension[0] = {1, 1};
        dimensions = last + 1;
    }

    static constexpr size_t kDirect = 1024;  // shorter runs are gathered

    static bool before(const Dimension &one, const Dimension &other) {
        if (one.stride == 0 || other.stride == 0) return one.stride == 0 && other.stride != 0;
        return one.stride > other.stride;
    }

    // Where the innermost run number *index* starts; sets *at*, its indices.
    const char *place(int64_t index, int64_t *at) const {
        int64_t offset = 0;
        for (int d = dimensions - 2; d >= 0; d--) {
            at[d] = index % dimension[d].size;
            index /= dimension[d].size;
            offset += at[d] * dimension[d].stride;
        }
        return data + offset * int64_t(item);
    }

    const char *next(const char *row, int64_t *at) const {
        int64_t offset = 0;
        for (int d = dimensions - 2; d >= 0; d--) {
            offset += dimension[d].stride;
            if (++at[d] < dimension[d].size) break;
            offset -= at[d] * dimension[d].stride;
            at[d] = 0;
        }
        return row + offset * int64_t(item);
    }

    void gather(const char *from, int64_t stride, size_t n, char *to) const {
        if (stride == 1) std::memcpy(to, from, n * item);
        else if (item == 8) gather_as<uint64_t>(from, stride, n, to);
        else if (item == 4) gather_as<uint32_t>(from, stride, n, to);
        else gather_as<uint16_t>(from, stride, n, to);
    }

    template <class T> static void gather_as(const char *from, int64_t stride, size_t n, char *to) {
        const T *source = reinterpret_cast<const T *>(from);
        T *target = reinterpret_cast<T *>(to);
        for (size_t i = 0; i < n; i++) target[i] = source[int64_t(i) * stride];
    }
};

}  // namespace sonde
