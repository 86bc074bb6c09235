/* For kernel bodies that are compiled once per instruction set: names that end in it, and inlining that makes their
 * constant arguments constants. */
#ifndef DF2_OPS_COMMON_TEMPLATE_H
#define DF2_OPS_COMMON_TEMPLATE_H

#define DF2_INLINE static inline __attribute__((always_inline))
#define DF2_JOIN2(a, b) a##b
#define DF2_JOIN(a, b) DF2_JOIN2(a, b)
#define DF2_STRING2(name) #name
#define DF2_STRING(name) DF2_STRING2(name)

#endif
