// How a tensor is added to the row of a statistic.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "layout.hpp"
#include "passes.hpp"

namespace sonde {

extern const Passes *passes;  // those in use

struct Reduction {
    const char *name;
    // Adds a tensor to *row*, whose fields are those of the statistic. *arguments* is the tuple that native.Kernel holds. If it
    // cannot be done for such a tensor, the answer is false and nothing was written; there may be an exception.
    bool (*add)(double *row, const View &view, PyObject *arguments);
    int sums;  // how many fields are sums; the minima follow
    // Changes the sums of *row* into those that add up with the sums of *other*, if these depend on the minima; else null.
    void (*align)(double *row, const double *other);
};

constexpr int kRevision = 2;  // of rows and functions, as native.py expects them: other code would write beyond a row
constexpr int kMostAligned = 16;  // fields of a row that is aligned

// Merges the row *other* into *row*. *sums* counts what leads the rows, too; *reduction* may be null.
void merge_rows(double *row, const double *other, Py_ssize_t sums, Py_ssize_t minima, Py_ssize_t maxima, const Reduction *reduction);

constexpr int kReductions = 4;
extern const Reduction reductions[kReductions];  // as native.py numbers them

}  // namespace sonde
