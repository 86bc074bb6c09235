// The routines of the SME calling convention that compiled code calls, for tests: zig's run-time library lacks them.
// Elsewhere they come with the compiler (libgcc 14, compiler-rt, the Android NDK from r27) or the system (Apple).
// Called from streaming code, they must only touch the registers that the convention lets them.
    .arch_extension sme
    .text

    .macro function name
    .globl \name
    .type \name, %function
    .variant_pcs \name
    .balign 4
\name:
    .endm

// Saves another function's dormant ZA to the buffer that TPIDR2 describes: address, number of slices.
function __arm_tpidr2_save
    mrs     x14, TPIDR2_EL0
    cbz     x14, 2f
    ldr     x15, [x14]
    cbz     x15, 2f
    ldrh    w17, [x14, #8]
    mov     w14, wzr
1:  cmp     w14, w17
    b.hs    2f
    // only w12 to w15 can name a slice
    str     za[w14, 0], [x15]
    addsvl  x15, x15, #1
    add     w14, w14, #1
    b       1b
2:  ret

// x0 = streaming vector granules, or 0 outside streaming mode (there it would be SVE's, which nothing here uses).
function __arm_get_current_vg
    mrs     x0, SVCR
    tbz     x0, #0, 1f
    rdsvl   x0, #1
    lsr     x0, x0, #3
    ret
1:  mov     x0, xzr
    ret

// x0 = PSTATE.SM and PSTATE.ZA in bits 0 and 1, "SME and TPIDR2 exist" in bits 63 and 62; x1 = TPIDR2.
function __arm_sme_state
    mrs     x0, SVCR
    and     x0, x0, #3
    orr     x0, x0, #0xc000000000000000
    mrs     x1, TPIDR2_EL0
    ret

    .section .note.GNU-stack, "", %progbits
