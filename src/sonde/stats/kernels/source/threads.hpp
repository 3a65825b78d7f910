// Shares of a long pass on several threads. Only for files that every processor runs: a parallel region is not chosen by level.
#pragma once

#include <cstddef>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace sonde {

constexpr size_t kPerThread = 1 << 15;  // as in torch
constexpr int kMostThreads = 256;

inline int threads_for(size_t count, long asked) {
    const size_t useful = count / kPerThread;
    const size_t most = useful < size_t(kMostThreads) ? useful : size_t(kMostThreads);
    return int(size_t(asked) < most ? size_t(asked) : most < 1 ? 1 : most);
}

// What a thread adds up by itself: as *into* was before anything was added.
template <class Into> Into empty_like(const Into &) { return Into(); }

// Calls pass(first, end, part) for shares of *count* units, multiples of *grain*, on *threads* threads, and merges the parts.
template <class Into, class Pass> void reduce(size_t count, size_t grain, int threads, Into &into, Pass pass) {
#ifdef _OPENMP
    if (threads > 1) {
        const size_t share = ((count - 1) / size_t(threads) / grain + 1) * grain;
        #pragma omp parallel num_threads(threads)
        {
            Into part = empty_like(into);
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
    (void)grain;
    (void)threads;
#endif
    pass(size_t(0), count, into);
}

}  // namespace sonde
