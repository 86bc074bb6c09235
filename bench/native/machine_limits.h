/* What this machine can do at best: the yardsticks that kernels are held against. Measured, never looked up. */
#ifndef BENCH_MACHINE_LIMITS_H
#define BENCH_MACHINE_LIMITS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes per second at which n_threads threads together read the buffer once, each its own part, front to back or in
 * four places at a time: whichever is faster. */
double limits_read_rate(const void *buffer, size_t n_bytes, int32_t n_threads, int32_t n_repeats);

/* Operations per second (a multiplication and an addition count as two) of n_threads threads together that do nothing
 * else, on values in registers, with the instructions that the named instruction set (a name DF2_FORCE_ISA takes) has
 * for the purpose: 8-bit integers summed up in 32 bits, and float32. 0 if this program knows no such loop; the caller
 * makes sure that the CPU has the instructions. */
double limits_int8_rate(const char *isa, int32_t n_threads, int32_t n_repeats);
double limits_float_rate(const char *isa, int32_t n_threads, int32_t n_repeats);

#ifdef __cplusplus
}
#endif

#endif
