// The OpenMP library that torch has loaded, found by the names of its functions, so that its threads are ours. Known for
// torch 2.11 to 2.15, whose wheels for Linux bring GNU's. Where torch has loaded none, there are no threads.
#pragma once

#include <cstdint>

extern "C" {
__attribute__((weak)) void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned flags);
__attribute__((weak)) int omp_get_thread_num();
__attribute__((weak)) int omp_get_num_threads();
}

namespace kiln::platform {

inline bool has_openmp() { return GOMP_parallel != nullptr; }

// Calls the function in so many threads at once, and waits for all of them. Only where has_openmp().
inline void run_parallel(void (*body)(void*), void* data, int64_t threads) {
  GOMP_parallel(body, data, static_cast<unsigned>(threads), 0);
}

// In such a function: which of the threads this is, and how many there are.
inline int64_t thread_number() { return omp_get_thread_num(); }
inline int64_t thread_count() { return omp_get_num_threads(); }

}  // namespace kiln::platform
