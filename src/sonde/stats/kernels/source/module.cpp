// sonde.stats.kernels._native: adds tensors to rows of statistics in place. A row is given as an address; a tensor as itself,
// or as an address where native.py makes sure that it is that of a plain tensor on the CPU.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "adding.hpp"
#include "exchange.hpp"
#include "passes.hpp"
#include "threads.hpp"

namespace sonde {

#define SONDE_DECLARE(level) namespace level { extern const Passes passes; }
SONDE_DECLARE(baseline)
#ifdef SONDE_AVX2
SONDE_DECLARE(avx2)
#endif
#ifdef SONDE_AVX512
SONDE_DECLARE(avx512)
#endif

const Passes *passes = nullptr;

namespace {

constexpr int kMostLevels = 3;
const Passes *levels[kMostLevels];  // those that this processor can run, best first
int level_count = 0;

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

Guard guard;

bool is_kind(long kind) { return kind >= kDouble && kind <= kHalf; }

// The tuple of at most kMostDimensions numbers as *made*, and how many they are; -1 with an exception.
Py_ssize_t take_numbers(PyObject *tuple, int64_t *made) {
    const Py_ssize_t n = PyTuple_Size(tuple);
    if (n > kMostDimensions) PyErr_SetString(PyExc_ValueError, "a tensor has at most 64 dimensions");
    for (Py_ssize_t i = 0; i < n && !PyErr_Occurred(); i++) made[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
    return PyErr_Occurred() ? -1 : n;
}

// The first arguments of what adds: the number of a reduction, the address of a row, and whether it is led, by a count of
// additions before the first number of the statistic.
struct Into {
    const Reduction *reduction = nullptr;
    long led = 0;

    bool take(PyObject *number, PyObject *leads) {
        const long which = PyLong_AsLong(number);
        led = PyLong_AsLong(leads);
        if (PyErr_Occurred()) return false;
        if (which < 0 || which >= kReductions || led < 0 || led > 1) {
            PyErr_SetString(PyExc_ValueError, "there is no such reduction, or a row that is led so");
            return false;
        }
        reduction = &reductions[which];
        return true;
    }

    bool add(double *row, const View &view, PyObject *arguments) const {
        if (!reduction->add(row + led, view, arguments)) return false;
        if (led) row[0] += 1;
        return true;
    }
};

PyObject *answer(bool done) { return PyErr_Occurred() ? nullptr : PyBool_FromLong(done); }

bool is_connected() {
    if (!guard.connected()) PyErr_SetString(PyExc_RuntimeError, "not connected");
    return guard.connected();
}

// connect(capsule, (Tensor, Parameter), is_neg, threads) -> whether add() and add_each() can be used from now on.
PyObject *connect(PyObject *, PyObject *const *args, Py_ssize_t n) {
    if (n != 4) {
        PyErr_SetString(PyExc_TypeError, "expected a capsule, types, is_neg, threads");
        return nullptr;
    }
    return answer(guard.connect(args[0], args[1], args[2], args[3]));
}

// add(reduction, led, row, tensor, arguments) -> whether it was done: not if the tensor is not plain.
PyObject *add(PyObject *, PyObject *const *args, Py_ssize_t n) {
    if (n != 5) {
        PyErr_SetString(PyExc_TypeError, "expected reduction, led, row, tensor, arguments");
        return nullptr;
    }
    Into into;
    if (!is_connected() || !into.take(args[0], args[1])) return nullptr;
    double *row = static_cast<double *>(PyLong_AsVoidPtr(args[2]));
    View view;
    return answer(row && guard.view(args[3], view) && into.add(row, view, args[4]));
}

// add_each(reduction, led, rows, tensors, minus or None, arguments) -> the positions of those that were not added. Three lists
// of one length, which nobody else may change.
PyObject *add_each(PyObject *, PyObject *const *args, Py_ssize_t n) {
    if (n != 6 || !PyList_Check(args[2]) || !PyList_Check(args[3]) || !(args[4] == Py_None || PyList_Check(args[4]))) {
        PyErr_SetString(PyExc_TypeError, "expected reduction, led, lists of rows, tensors and what to subtract or None, arguments");
        return nullptr;
    }
    PyObject *rows = args[2], *tensors = args[3], *minus = args[4] == Py_None ? nullptr : args[4];
    const Py_ssize_t count = PyList_Size(rows);
    if (PyList_Size(tensors) != count || (minus && PyList_Size(minus) != count)) {
        PyErr_SetString(PyExc_ValueError, "rows, tensors and what to subtract must be as many");
        return nullptr;
    }
    Into into;
    if (!is_connected() || !into.take(args[0], args[1])) return nullptr;
    PyObject *refused = PyList_New(0);
    for (Py_ssize_t i = 0; refused && i < count; i++) {
        double *row = static_cast<double *>(PyLong_AsVoidPtr(PyList_GetItem(rows, i)));
        PyObject *tensor = PyList_GetItem(tensors, i);
        View view;
        const bool done = row && (minus ? guard.view(tensor, PyList_GetItem(minus, i), view) : guard.view(tensor, view)) &&
                          into.add(row, view, args[5]);
        PyObject *position = done || PyErr_Occurred() ? nullptr : PyLong_FromSsize_t(i);
        if (position) PyList_Append(refused, position);
        Py_XDECREF(position);
        if (PyErr_Occurred()) {
            Py_DECREF(refused);
            return nullptr;
        }
    }
    return refused;
}

// add_memory(reduction, led, row, data, minus or 0, kind, shape, strides, threads, arguments) -> whether it was done: the same
// for a tensor that somebody else has found plain.
PyObject *add_memory(PyObject *, PyObject *const *args, Py_ssize_t n) {
    if (n != 10) {
        PyErr_SetString(PyExc_TypeError, "expected reduction, led, row, data, minus, kind, shape, strides, threads, arguments");
        return nullptr;
    }
    Into into;
    if (!into.take(args[0], args[1])) return nullptr;
    int64_t shape[kMostDimensions], strides[kMostDimensions];
    double *row = static_cast<double *>(PyLong_AsVoidPtr(args[2]));
    const char *data = static_cast<const char *>(PyLong_AsVoidPtr(args[3])), *minus = static_cast<const char *>(PyLong_AsVoidPtr(args[4]));
    const long kind = PyLong_AsLong(args[5]), threads = PyLong_AsLong(args[8]);
    if (PyErr_Occurred()) return nullptr;
    const Py_ssize_t rank = take_numbers(args[6], shape);
    if (rank < 0 || take_numbers(args[7], strides) < 0) return nullptr;
    View view = {Kind(kind), data, minus, 1, int(rank), shape, strides, threads};
    for (Py_ssize_t i = 0; i < rank; i++) view.count *= shape[i] > 0 ? size_t(shape[i]) : 0;
    if (!row || !data || !is_kind(kind) || view.count == 0 || threads < 1 || PyTuple_Size(args[7]) != rank) {
        PyErr_SetString(PyExc_ValueError, "an address, the kind, the shape, the strides or the number of threads cannot be used");
        return nullptr;
    }
    return answer(into.add(row, view, args[9]));
}

// merge(row, other, sums, minima, maxima, reduction or -1): another row is added to *row*.
PyObject *merge(PyObject *, PyObject *const *args, Py_ssize_t n) {
    if (n != 6) {
        PyErr_SetString(PyExc_TypeError, "expected row, other, sums, minima, maxima, reduction");
        return nullptr;
    }
    double *row = static_cast<double *>(PyLong_AsVoidPtr(args[0]));
    const double *other = static_cast<const double *>(PyLong_AsVoidPtr(args[1]));
    const Py_ssize_t sums = PyLong_AsSsize_t(args[2]), minima = PyLong_AsSsize_t(args[3]), maxima = PyLong_AsSsize_t(args[4]);
    const long which = PyLong_AsLong(args[5]);
    if (PyErr_Occurred()) return nullptr;
    if (!row || !other) {
        PyErr_SetString(PyExc_ValueError, "a row has no address");
        return nullptr;
    }
    const Reduction *reduction = which >= 0 && which < kReductions ? &reductions[which] : nullptr;
    const bool is_aligned = reduction && reduction->align;
    if (which < -1 || which >= kReductions || (is_aligned && (sums < reduction->sums || sums + minima + maxima > kMostAligned))) {
        PyErr_SetString(PyExc_ValueError, "there is no such reduction, or no such row of it");
        return nullptr;
    }
    merge_rows(row, other, sums, minima, maxima, reduction);
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
    {"connect", cast(connect), METH_FASTCALL, "connect(capsule, (Tensor, Parameter), is_neg, threads) -> whether it did"},
    {"add", cast(add), METH_FASTCALL, "add(reduction, led, row, tensor, arguments) -> whether it was done"},
    {"add_each", cast(add_each), METH_FASTCALL, "add_each(reduction, led, rows, tensors, minus, arguments) -> positions of those not added"},
    {"add_memory", cast(add_memory), METH_FASTCALL,
     "add_memory(reduction, led, row, data, minus, kind, shape, strides, threads, arguments) -> whether it was done"},
    {"merge", cast(merge), METH_FASTCALL, "merge(row, other, sums, minima, maxima, reduction)"},
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
    if (made && (PyModule_AddIntConstant(made, "openmp", openmp) < 0 ||
                 PyModule_AddIntConstant(made, "revision", sonde::kRevision) < 0)) {
        Py_DECREF(made);
        return nullptr;
    }
    return made;
}
