// sonde.stats.kernels._native: adds tensors, given as addresses, to rows of statistics in place.
//
// native.py makes sure that an address is that of a plain tensor on the CPU. Long passes run without the GIL and on several
// threads; every row is written with the GIL held, so that threads may add to the same row at the same time.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cmath>
#include <memory>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "layout.hpp"
#include "passes.hpp"

namespace sonde {

#define SONDE_DECLARE(level) namespace level { extern const Passes passes; }
SONDE_DECLARE(baseline)
#ifdef SONDE_AVX2
SONDE_DECLARE(avx2)
#endif
#ifdef SONDE_AVX512
SONDE_DECLARE(avx512)
#endif

namespace {

constexpr size_t kAlone = 1 << 16;     // fewer elements are passed over with the GIL held: releasing it could cost more
constexpr size_t kPerThread = 1 << 15;  // as in torch
constexpr int kMostThreads = 256;

constexpr int kMostLevels = 3;
const Passes *levels[kMostLevels];  // those that this processor can run, best first
int level_count = 0;
const Passes *passes = nullptr;     // the one in use

void find_levels() {
#if defined(SONDE_AVX512) || defined(SONDE_AVX2)
    __builtin_cpu_init();
#endif
#ifdef SONDE_AVX512
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) levels[level_count++] = &avx512::passes;
#endif
#ifdef SONDE_AVX2
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
        __builtin_cpu_supports("bmi2")) levels[level_count++] = &avx2::passes;
#endif
    levels[level_count++] = &baseline::passes;
    passes = levels[0];
}

// Calls pass(first, end, part) for shares of *count* elements on *threads* threads, and merges the parts. The parallel region
// is here, in code that every processor runs.
template <class Into, class Pass> void reduce(size_t count, int threads, Into &into, Pass pass) {
#ifdef _OPENMP
    if (threads > 1) {
        const size_t share = ((count - 1) / size_t(threads) / 64 + 1) * 64;
        #pragma omp parallel num_threads(threads)
        {
            Into part;
            // If fewer threads came than were asked for, each takes several shares.
            for (size_t first = size_t(omp_get_thread_num()) * share; first < count; first += size_t(omp_get_num_threads()) * share) {
                pass(first, first + share < count ? first + share : count, part);
            }
            #pragma omp critical(sonde_merge)
            into.merge(part);
        }
        return;
    }
#else
    (void)threads;
#endif
    pass(size_t(0), count, into);
}

struct Squares {
    double value = 0;
    void merge(const Squares &other) { value += other.value; }
};

int threads_for(size_t count, long asked) {
    const size_t useful = count / kPerThread;
    const size_t most = useful < size_t(kMostThreads) ? useful : size_t(kMostThreads);
    return int(size_t(asked) < most ? size_t(asked) : most < 1 ? 1 : most);
}

bool take_dimensions(PyObject *shape, PyObject *strides, Layout &layout) {
    const Py_ssize_t n = PyTuple_Size(shape);
    if (n < 0 || n > Layout::kMost || PyTuple_Size(strides) != n) {
        PyErr_SetString(PyExc_ValueError, "shape and strides must be tuples of one length, at most 64");
        return false;
    }
    layout.dimensions = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        layout.add(PyLong_AsLongLong(PyTuple_GetItem(shape, i)), PyLong_AsLongLong(PyTuple_GetItem(strides, i)));
    }
    layout.settle();
    return !PyErr_Occurred();
}

bool is_kind(long kind) { return kind >= kDouble && kind <= kHalf; }

// What every reduction does with its arguments: row, led, data, kind, count, threads[, shape, strides]. A row that is led has
// a count of additions before its first number.
template <class Into, class Write>
PyObject *reduction(PyObject *const *args, Py_ssize_t n, void (*pass)(Kind, const void *, size_t, Into &), Write write) {
    if (n != 6 && n != 8) {
        PyErr_SetString(PyExc_TypeError, "expected row, led, data, kind, count, threads[, shape, strides]");
        return nullptr;
    }
    double *row = static_cast<double *>(PyLong_AsVoidPtr(args[0]));
    const long led = PyLong_AsLong(args[1]);
    const void *data = PyLong_AsVoidPtr(args[2]);
    const long kind = PyLong_AsLong(args[3]), threads = PyLong_AsLong(args[5]);
    const Py_ssize_t count = PyLong_AsSsize_t(args[4]);
    if (PyErr_Occurred()) return nullptr;
    if (!row || !data || !is_kind(kind) || count < 1 || threads < 1) {
        PyErr_SetString(PyExc_ValueError, "an address, the kind, the count or the number of threads cannot be used");
        return nullptr;
    }
    Layout layout(data, size_of(Kind(kind)), size_t(count));
    if (n == 8 && !take_dimensions(args[6], args[7], layout)) return nullptr;
    const auto over = [&](size_t first, size_t end, Into &part) {
        layout.walk(first, end, [&](const void *at, size_t elements) { pass(Kind(kind), at, elements, part); });
    };
    Into into;
    if (layout.count < kAlone) {
        reduce(layout.count, 1, into, over);
    } else {
        Py_BEGIN_ALLOW_THREADS
        reduce(layout.count, threads_for(layout.count, threads), into, over);
        Py_END_ALLOW_THREADS
    }
    write(row, layout.count, into);
    if (led) row[-1] += 1;
    Py_RETURN_NONE;
}

// Rows as Moments.fields and ExponentHistogram.fields have them

PyObject *add_moments(PyObject *, PyObject *const *args, Py_ssize_t n) {
    return reduction<Moments>(args, n, passes->moments, [](double *row, size_t count, const Moments &seen) {
        row[0] += double(count);
        row[1] += double(seen.nan);
        row[2] += double(seen.inf);
        row[3] += double(seen.zeros);
        row[4] += seen.sum.total();
        row[5] += seen.squares.total();
        row[6] = seen.low < row[6] ? seen.low : row[6];
        row[7] = seen.high > row[7] ? seen.high : row[7];
    });
}

PyObject *add_exponents(PyObject *, PyObject *const *args, Py_ssize_t n) {
    return reduction<Exponents>(args, n, passes->exponents, [](double *row, size_t, const Exponents &seen) {
        for (int i = 0; i < kPlaces; i++) row[i] += double(seen.places[i]);
    });
}

// merge(row, other, sums, minima, maxima): another row is added to *row*.
PyObject *merge(PyObject *, PyObject *const *args, Py_ssize_t n) {
    if (n != 5) {
        PyErr_SetString(PyExc_TypeError, "expected row, other, sums, minima, maxima");
        return nullptr;
    }
    double *row = static_cast<double *>(PyLong_AsVoidPtr(args[0]));
    const double *other = static_cast<const double *>(PyLong_AsVoidPtr(args[1]));
    const Py_ssize_t sums = PyLong_AsSsize_t(args[2]), minima = PyLong_AsSsize_t(args[3]), maxima = PyLong_AsSsize_t(args[4]);
    if (PyErr_Occurred()) return nullptr;
    if (!row || !other) {
        PyErr_SetString(PyExc_ValueError, "a row has no address");
        return nullptr;
    }
    Py_ssize_t i = 0;
    for (; i < sums; i++) row[i] += other[i];
    for (; i < sums + minima; i++) row[i] = other[i] < row[i] ? other[i] : row[i];
    for (; i < sums + minima + maxima; i++) row[i] = other[i] > row[i] ? other[i] : row[i];
    Py_RETURN_NONE;
}

struct Span {
    const char *data, *minus;
    Kind kind;
    size_t count;
};

double norm_of(const Span &span, int threads) {
    const size_t item = size_of(span.kind);
    Squares squares;
    reduce(span.count, threads, squares, [&](size_t first, size_t end, Squares &part) {
        const char *minus = span.minus ? span.minus + first * item : nullptr;
        part.value += passes->squares(span.kind, span.data + first * item, minus, end - first);
    });
    return std::sqrt(squares.value);
}

// norms(out, spans, threads): out[i] = the Euclidean norm of spans[i] = (data, minus or 0, kind, count).
PyObject *norms(PyObject *, PyObject *const *args, Py_ssize_t n) {
    if (n != 3 || !PyList_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "expected out, a list of spans, threads");
        return nullptr;
    }
    double *out = static_cast<double *>(PyLong_AsVoidPtr(args[0]));
    const long threads = PyLong_AsLong(args[2]);
    const Py_ssize_t count = PyList_Size(args[1]);
    if (PyErr_Occurred()) return nullptr;
    std::unique_ptr<Span[], decltype(&PyMem_Free)> spans(static_cast<Span *>(PyMem_Malloc(size_t(count + 1) * sizeof(Span))), &PyMem_Free);
    if (!spans) return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *span = PyList_GetItem(args[1], i);
        if (PyTuple_Size(span) != 4) {
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a span is (data, minus, kind, count)");
            return nullptr;
        }
        const long kind = PyLong_AsLong(PyTuple_GetItem(span, 2));
        spans[i] = {static_cast<const char *>(PyLong_AsVoidPtr(PyTuple_GetItem(span, 0))),
                    static_cast<const char *>(PyLong_AsVoidPtr(PyTuple_GetItem(span, 1))),
                    Kind(kind), size_t(PyLong_AsSsize_t(PyTuple_GetItem(span, 3)))};
        if (PyErr_Occurred()) return nullptr;
        if (!is_kind(kind) || !spans[i].data) {
            PyErr_SetString(PyExc_ValueError, "a span has no address, or a kind that cannot be used");
            return nullptr;
        }
    }
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count; i++) out[i] = norm_of(spans[i], threads_for(spans[i].count, threads));
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

// levels() -> (in use, (all that this processor can run, best first))
PyObject *list_levels(PyObject *, PyObject *const *, Py_ssize_t) {
    PyObject *names = PyTuple_New(level_count);
    for (int i = 0; names && i < level_count; i++) PyTuple_SetItem(names, i, PyUnicode_FromString(levels[i]->name));
    return names ? Py_BuildValue("(sN)", passes->name, names) : nullptr;
}

PyObject *use_level(PyObject *, PyObject *const *args, Py_ssize_t n) {
    for (int i = 0; n == 1 && i < level_count; i++) {
        if (PyUnicode_CompareWithASCIIString(args[0], levels[i]->name) == 0) {
            passes = levels[i];
            Py_RETURN_NONE;
        }
    }
    PyErr_SetString(PyExc_ValueError, "this processor has no such instruction set, or the kernel was built without it");
    return nullptr;
}

template <class F> PyCFunction cast(F function) { return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)); }

PyMethodDef functions[] = {
    {"moments", cast(add_moments), METH_FASTCALL, "moments(row, led, data, kind, count, threads[, shape, strides])"},
    {"exponents", cast(add_exponents), METH_FASTCALL, "exponents(row, led, data, kind, count, threads[, shape, strides])"},
    {"merge", cast(merge), METH_FASTCALL, "merge(row, other, sums, minima, maxima)"},
    {"norms", cast(norms), METH_FASTCALL, "norms(out, spans, threads)"},
    {"levels", cast(list_levels), METH_FASTCALL, "levels() -> (in use, all)"},
    {"use_level", cast(use_level), METH_FASTCALL, "use_level(name)"},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", "One-pass reductions on the CPU.", -1, functions, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace sonde

PyMODINIT_FUNC PyInit__native() {
    if (!sonde::passes) sonde::find_levels();
    PyObject *made = PyModule_Create(&sonde::definition);
#ifdef _OPENMP
    constexpr long openmp = _OPENMP;
#else
    constexpr long openmp = 0;
#endif
    if (made && PyModule_AddIntConstant(made, "openmp", openmp) < 0) {
        Py_DECREF(made);
        return nullptr;
    }
    return made;
}
