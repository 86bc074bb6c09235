/* Runs a function on several threads at once, several times, and takes the time. */
#ifndef BENCH_THREAD_TEAM_H
#define BENCH_THREAD_TEAM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TEAM_MAX_THREADS 64

/* Called on every thread of the team, as thread 0 to n_threads - 1. */
typedef void (*team_function)(void *context, int32_t thread, int32_t n_threads);

typedef struct team_times {
  double best_s;
  double median_s;
} team_times;

/* Runs `work` on n_threads threads, once untimed and then n_repeats times. Before each, `reset` runs on one thread;
 * null for none. Time runs from when the first thread begins to when the last is done. Ends the program if threads
 * cannot be started. */
team_times team_measure(team_function work, void (*reset)(void *context), void *context, int32_t n_threads,
                        int32_t n_repeats);

#ifdef __cplusplus
}
#endif

#endif
