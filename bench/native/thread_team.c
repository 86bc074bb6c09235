#include "thread_team.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define MAX_REPEATS 1000
#define N_SPINS 2000 /* before a waiting thread gives its core away */

typedef struct team {
  team_function work;
  void (*reset)(void *context);
  void *context;
  int32_t n_threads;
  int32_t n_repeats;
  atomic_int n_waiting;
  atomic_int generation;
} team;

typedef struct member {
  team *of;
  int32_t thread;
  double began_s[MAX_REPEATS + 1];
  double ended_s[MAX_REPEATS + 1];
} member;

static double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Spinning, because a sleeping thread would wake up too late for times of a millisecond. */
static void wait_for_all(team *all) {
  int generation = atomic_load(&all->generation);
  if (atomic_fetch_add(&all->n_waiting, 1) == all->n_threads - 1) {
    atomic_store(&all->n_waiting, 0);
    atomic_fetch_add(&all->generation, 1);
    return;
  }
  for (int32_t spins = 0; atomic_load(&all->generation) == generation; spins++) {
    if (spins > N_SPINS) {
      sched_yield();
    }
  }
}

static void *run_member(void *argument) {
  member *self = argument;
  team *all = self->of;
  for (int32_t repeat = 0; repeat <= all->n_repeats; repeat++) {
    if (self->thread == 0 && all->reset) {
      all->reset(all->context);
    }
    wait_for_all(all);
    self->began_s[repeat] = now_s();
    all->work(all->context, self->thread, all->n_threads);
    self->ended_s[repeat] = now_s();
    wait_for_all(all);
  }
  return NULL;
}

/* From the first thread's beginning to the last one's end. One thread's clock would not do: it may lose its core just
 * after the others started. */
static double seconds_of(const member *members, int32_t n_threads, int32_t repeat) {
  double began = members[0].began_s[repeat];
  double ended = members[0].ended_s[repeat];
  for (int32_t i = 1; i < n_threads; i++) {
    began = members[i].began_s[repeat] < began ? members[i].began_s[repeat] : began;
    ended = members[i].ended_s[repeat] > ended ? members[i].ended_s[repeat] : ended;
  }
  return ended - began;
}

static int by_size(const void *a, const void *b) {
  double left = *(const double *)a;
  double right = *(const double *)b;
  return (left > right) - (left < right);
}

static void start_threads(team *all, member *members, pthread_t *threads) {
  for (int32_t i = 0; i < all->n_threads; i++) {
    members[i].of = all;
    members[i].thread = i;
    if (i > 0 && pthread_create(&threads[i], NULL, run_member, &members[i]) != 0) {
      fprintf(stderr, "bench: cannot start %d threads; ask for fewer with --threads\n", all->n_threads);
      exit(1);
    }
  }
}

team_times team_measure(team_function work, void (*reset)(void *context), void *context, int32_t n_threads,
                        int32_t n_repeats) {
  pthread_t threads[TEAM_MAX_THREADS];
  double seconds[MAX_REPEATS];
  team all = {.work = work, .reset = reset, .context = context, .n_threads = n_threads, .n_repeats = n_repeats};
  if (n_threads < 1 || n_threads > TEAM_MAX_THREADS || n_repeats < 1 || n_repeats > MAX_REPEATS) {
    fprintf(stderr, "bench: 1 to %d threads and 1 to %d repeats, please\n", TEAM_MAX_THREADS, MAX_REPEATS);
    exit(1);
  }
  member *members = calloc((size_t)n_threads, sizeof(member));
  if (!members) {
    fprintf(stderr, "bench: no memory for %d threads\n", n_threads);
    exit(1);
  }
  start_threads(&all, members, threads);
  run_member(&members[0]);
  for (int32_t i = 1; i < n_threads; i++) {
    pthread_join(threads[i], NULL);
  }
  for (int32_t repeat = 0; repeat < n_repeats; repeat++) {
    seconds[repeat] = seconds_of(members, n_threads, repeat + 1); /* the first was the untimed one */
  }
  free(members);
  qsort(seconds, (size_t)n_repeats, sizeof(double), by_size);
  return (team_times){seconds[0], seconds[n_repeats / 2]};
}
