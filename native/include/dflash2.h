/* dflash2.h - block-diffusion speculative decoding for llama.cpp targets.
 *
 * This is the only installed header. It is C11 and C++17, and needs neither ggml's nor llama.cpp's headers: their
 * types appear only as pointers to incomplete structs.
 *
 * Conventions
 *   Errors     Functions that can fail return DF2_OK (0) or a negative df2_status. The codes are pinned and never
 *              reused. df2_error_last() gives the calling thread a sentence that names the problem and the remedy.
 *   Ownership  `_load`, `_open`, `_attach` and `_create` hand out objects; each has one `_free`, which takes NULL.
 *              Pointers returned by getters are borrowed from the object they were asked of.
 *   Threads    One thread at a time per object, unless said otherwise; distinct sessions on distinct targets are
 *              independent. A drafter is immutable and may be shared by sessions on any threads.
 *   Processes  What was loaded can be used in a forked child as long as nothing has been generated before the fork;
 *              after that prefill, step and draft are DF2_EUNSUPPORTED in the child, which lacks the threads. Where the
 *              program itself has decoded with llama.cpp before the fork, they hang.
 *   Options    Option structs begin with `struct_size`. Start from the _INIT macro (or the `_init` function, from a
 *              language without macros); a NULL pointer means all defaults. Unknown non-zero fields are refused.
 *   Failure    Every declaration says what state a failure leaves behind.
 *   Glossary   target: the model whose text is wanted. drafter: the small DFlash model. block: the positions drafted
 *              in one pass. anchor: the last verified token, position 0 of the block. verify: one target pass over
 *              anchor and drafted tokens. tap: the hidden state after a chosen target layer. acceptance length:
 *              accepted drafted tokens per cycle, plus one for the bonus token.
 */
#ifndef DFLASH2_H
#define DFLASH2_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(DF2_BUILD)
#define DF2_API __attribute__((visibility("default")))
#else
#define DF2_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* llama.cpp and ggml types this header only points to. */
struct ggml_tensor;
struct llama_context;
struct llama_sampler;

typedef struct df2_taps df2_taps;
typedef struct df2_target df2_target;
typedef struct df2_drafter df2_drafter;
typedef struct df2_session df2_session;

/* Longest draft the library makes, in tokens: the size of the per-position arrays in df2_stats. */
#define DF2_MAX_DRAFT 64

/* Most target layers a drafter may tap. */
#define DF2_MAX_TAPS 32

typedef enum df2_status {
  DF2_OK = 0,
  DF2_EINVAL = -1,       /* an argument is wrong; nothing changed */
  DF2_ENOMEM = -2,       /* out of memory; nothing changed */
  DF2_EIO = -3,          /* a file cannot be opened or read */
  DF2_EFORMAT = -4,      /* a file is not what it claims to be, or is damaged */
  DF2_EMISMATCH = -5,    /* this drafter does not fit this target */
  DF2_EUNSUPPORTED = -6, /* valid, but not something this build can do */
  DF2_ECONTEXT = -7,     /* the target's context is full; rewind, or open it with a larger n_ctx */
  DF2_EREWIND = -8,      /* the target's memory cannot go back that far; nothing changed */
  DF2_EBACKEND = -9,     /* llama.cpp failed to compute; the session is as before the call */
  DF2_EPOISONED = -10,   /* this or an earlier failure left the session unusable; free it */
  DF2_EINTERNAL = -11    /* a defect in this library; please report the message */
} df2_status;

/* ---------------------------------------------------------------------------------------------------------------
 * Library
 * ------------------------------------------------------------------------------------------------------------ */

/* The library's version, "major.minor.patch". Static storage. Any thread. */
DF2_API const char *df2_version(void);

/* The message of the calling thread's last failed call; "" before the first. Never NULL; valid until the thread's
 * next failing call. Decide on the returned code, show the message. */
DF2_API const char *df2_error_last(void);

/* The name of a status, e.g. "DF2_EFORMAT"; "unknown" for any other number. Static storage. Any thread. */
DF2_API const char *df2_status_name(int32_t status);

/* How many threads a target of n_threads 0 computes with, for contexts that a program creates itself: one per fast
 * physical core the process may run on, and no more than its CPU quota (cgroups) lets run. At least 1. reason: NULL, or
 * receives how the number came about, e.g. "8 cores, of which 4 fast; CPU quota 2.0"; valid until the thread's next
 * call. Any thread. */
DF2_API int32_t df2_threads_default(const char **reason);

typedef enum df2_log_level { DF2_LOG_INFO = 1, DF2_LOG_WARN = 2 } df2_log_level;

typedef void (*df2_log_callback)(int32_t level, const char *message, void *payload);

/* Where this library's own log lines go; NULL (the default) drops them. The library itself writes to neither stdout nor
 * stderr, but for the last words of a process that another thread aborts while a target is being opened.
 * llama.cpp's log is llama_log_set's business. Call before other threads use the library. */
DF2_API void df2_log_set(df2_log_callback callback, void *payload);

/* Drops a line: for llama_log_set, as its callback, where llama.cpp's log is not wanted. Any thread. */
DF2_API void df2_log_ignore(int level, const char *message, void *payload);

/* ---------------------------------------------------------------------------------------------------------------
 * Kernels: this library's matrix products and attention inside llama.cpp's CPU back end
 *
 * Weights that a kernel exists for are packed while a model is loaded, and multiplied by this library in llama.cpp's
 * own threads; everything else is computed as ever. They serve every model the process loads with llama.cpp afterwards.
 * Environment: DF2_KERNELS=off leaves everything to llama.cpp. DF2_FORCE_ISA=<name> takes the kernels of one
 * instruction set (avx512, avx2vnni, avx2, sme2, i8mm, dotprod, neon, ref) or fails.
 * ------------------------------------------------------------------------------------------------------------ */

typedef enum df2_kernels {
  DF2_KERNELS_DEFAULT = 0, /* where they can be used */
  DF2_KERNELS_OFF = 1      /* not for this model */
} df2_kernels;

typedef enum df2_kernels_state {
  DF2_KERNELS_UNKNOWN = 0,  /* not asked for yet */
  DF2_KERNELS_ACTIVE = 1,   /* in use for models loaded from now on */
  DF2_KERNELS_LATE = 2,     /* the same, but only drafters' weights are packed: llama.cpp had loaded a model before */
  DF2_KERNELS_DISABLED = 3, /* switched off by DF2_KERNELS */
  DF2_KERNELS_UNSUPPORTED = 4, /* none for this CPU */
  DF2_KERNELS_FAILED = 5       /* they failed their self-test; llama.cpp's own are used */
} df2_kernels_state;

/* Tests the kernels and makes them known to llama.cpp, once per process; later calls do nothing. df2_target_open and
 * df2_drafter_load do this too: to be called only by programs that load models with llama.cpp themselves, before the
 * first one, and before other threads compute with llama.cpp: they go through the list of buffer types that this call
 * replaces, without a lock. Where this library knows of such threads, because a target exists, the call is refused; of
 * the program's own it knows nothing. Kernels that cannot be used are no error: df2_log_set's callback and
 * df2_kernels_info_get say why.
 * Errors: DF2_EINVAL (an environment variable has an unknown value), DF2_EUNSUPPORTED (DF2_FORCE_ISA asks for what this
 * CPU does not have; a target was attached before). Nothing changed then. Any thread. */
DF2_API int32_t df2_kernels_enable(void);

typedef struct df2_kernels_info {
  uint32_t struct_size;
  int32_t state;         /* df2_kernels_state */
  const char *isa;       /* instruction set in use, "" if none. Static storage, as the next */
  const char *note;      /* why kernels are not in use, or not for all weights; "" if they are */
  uint64_t packed_bytes; /* weights packed in this process: of all models in memory */
  uint64_t copied_bytes; /* how much of that is a second copy, of embeddings that are also the head */
} df2_kernels_info;

/* Fills in *info; info->struct_size must be set (DF2_EINVAL otherwise). Any thread. */
DF2_API int32_t df2_kernels_info_get(df2_kernels_info *info);

/* ---------------------------------------------------------------------------------------------------------------
 * Taps: how the target's hidden states are read
 * ------------------------------------------------------------------------------------------------------------ */

/* Creates the object that reads a target's hidden states in a context that the program creates, where the kernels do
 * not (df2_kernels_info_get tells whether they are in use): put df2_taps_eval and the object into
 * llama_context_params.cb_eval and .cb_eval_user_data, create the context, then df2_target_attach it.
 * Owned by the caller; must outlive the context, and serves one context at a time.
 * Errors: DF2_EINVAL, DF2_ENOMEM. On failure *out is NULL. */
DF2_API int32_t df2_taps_create(df2_taps **out);

/* Free the context first, and targets that were given the object. */
DF2_API void df2_taps_free(df2_taps *taps);

/* A ggml_backend_sched_eval_callback; `taps` is the df2_taps. Called by llama.cpp, never by the program. It costs
 * nothing where the kernels read the hidden states. */
DF2_API bool df2_taps_eval(struct ggml_tensor *tensor, bool ask, void *taps);

/* ---------------------------------------------------------------------------------------------------------------
 * Target
 * ------------------------------------------------------------------------------------------------------------ */

/* Number formats of K/V caches. Those from Q8_0 on are ggml's blocks of 32 elements, which must divide the size of a
 * head; they take 8.5, 4.5, 5, 5.5, 6 and 4.5 bits per element. */
typedef enum df2_cache_type {
  DF2_CACHE_F16 = 0,
  DF2_CACHE_F32 = 1,
  DF2_CACHE_BF16 = 2,
  DF2_CACHE_Q8_0 = 3,
  DF2_CACHE_Q4_0 = 4,
  DF2_CACHE_Q4_1 = 5,
  DF2_CACHE_Q5_0 = 6,
  DF2_CACHE_Q5_1 = 7,
  DF2_CACHE_IQ4_NL = 8
} df2_cache_type;

typedef struct df2_target_options {
  uint32_t struct_size;
  int32_t n_ctx;     /* context length in tokens; 0: the model's trained length, at most 4096. llama.cpp rounds it up to
                        a multiple of 256: llama_n_ctx(df2_target_context(target)) has what came of it */
  int32_t n_batch;   /* most tokens per prefill decode; 0: 512 */
  int32_t n_threads; /* 0: df2_threads_default() */
  int32_t kernels;   /* df2_kernels */
  uint64_t max_bytes; /* most memory that opening may take, as df2_plan's total_bytes counts it; 0: what the machine and
                         the process's control groups have available; UINT64_MAX: nothing is checked */
  int32_t cache_type_k, cache_type_v; /* df2_cache_type of the K/V cache. DF2_EINVAL where llama.cpp cannot have them */
  int32_t swa_full; /* of a model with a sliding window: 1 (the default): its windowed layers keep the keys and values
                       of the whole context. 0: about those of window + n_batch tokens, which saves their memory and
                       refuses rewinds past it (DF2_EREWIND). The text is the same with kernels and flash attention
                       (docs/identity.md) */
} df2_target_options;

#define DF2_TARGET_OPTIONS_INIT \
  {sizeof(df2_target_options), 0, 0, 0, DF2_KERNELS_DEFAULT, 0, DF2_CACHE_F16, DF2_CACHE_F16, 1}

/* Fills in the defaults. `size` is sizeof(df2_target_options) as the caller knows it. DF2_EINVAL for a size this
 * library does not know. */
DF2_API int32_t df2_target_options_init(df2_target_options *options, size_t size);

/* Loads a GGUF model with llama.cpp on the CPU, also where llama.cpp has GPUs, and creates a context whose hidden
 * states can be tapped. The file's structure is checked first, because llama.cpp aborts on some damaged files. All
 * parts of a split model are looked for beside the first. A file that cannot be mapped is read. What it takes is
 * planned first, as df2_target_plan does. Without memory for packed weights the model is opened as with
 * DF2_KERNELS_OFF, with a line for the log; df2_stats' target_packed_bytes is 0 then. DF2_ENOMEM: there is not even
 * memory for that, or max_bytes does not allow it; the message says what is needed and what would help. Nothing was
 * loaded then. llama.cpp's reason for a failure is in the message: its log callback is replaced for that long by one
 * that hands everything on; do not set another meanwhile. The first call of a process enables the kernels
 * (df2_kernels_enable): no other thread may be computing with llama.cpp. Errors: DF2_EIO, DF2_EFORMAT, DF2_ENOMEM,
 * DF2_EUNSUPPORTED, DF2_EINVAL. On failure *out is NULL. */
DF2_API int32_t df2_target_open(df2_target **out, const char *path, const df2_target_options *options);

/* Wraps a context that the program created. The context is borrowed: it must outlive the target, and while a session
 * exists nothing else may decode with it, or read or change its memory (sequence 0 is the session's, and of a model
 * with a recurrent state also sequence 1; such a context needs n_seq_max = 2 and kv_unified, or snapshots: n_rs_seq >
 * 0, which then is the longest draft). Where something has moved the end of sequence 0 (an image that the program
 * decoded, say), prefill, step and rewind are DF2_EINVAL until that is undone or the session is rewound to 0, which
 * clears the memory. taps: the object given to the context as cb_eval_user_data, or NULL. Without it hidden states are
 * read by the kernels, or, without kernels, as llama.cpp's `layer input` outputs, which only some architectures record;
 * df2_session_create says if this one does not.
 * Errors: DF2_EINVAL. On failure *out is NULL and the context is as before. */
DF2_API int32_t df2_target_attach(df2_target **out, struct llama_context *context, df2_taps *taps);

/* The llama.cpp context behind a target: for tokenization, chat templates and samplers. Borrowed: valid until the
 * target is freed. While a session exists, its memory is not to be read or changed: a recurrent state is complete only
 * when the session has been freed. NULL for NULL. Any thread. */
DF2_API struct llama_context *df2_target_context(const df2_target *target);

/* Token ids of a text, as llama_tokenize gives them, with an error where that would end the process.
 * text: n_bytes of UTF-8. add_special: with the tokens the model wants around a text, such as BOS. parse_special:
 * spelled-out control tokens become those tokens. tokens: room for `capacity` ids. *n_tokens: the ids the text has; if
 * they are more than capacity nothing is written, and the call is to be repeated with more room. Errors: DF2_EINVAL
 * (also: the vocabulary has no tokens for a character). Any thread; waits while another one opens a target. */
DF2_API int32_t df2_target_tokenize(const df2_target *target, const char *text, int32_t n_bytes, bool add_special,
                                    bool parse_special, int32_t *tokens, int32_t capacity, int32_t *n_tokens);

/* Frees the target, and the model and context if df2_target_open made them. Free its sessions first. */
DF2_API void df2_target_free(df2_target *target);

/* ---------------------------------------------------------------------------------------------------------------
 * Drafter
 * ------------------------------------------------------------------------------------------------------------ */

typedef struct df2_drafter_options {
  uint32_t struct_size;
  int32_t version; /* require DFlash 1 or DFlash 2; 0: take either */
  int32_t kernels; /* df2_kernels */
} df2_drafter_options;

#define DF2_DRAFTER_OPTIONS_INIT {sizeof(df2_drafter_options), 0, DF2_KERNELS_DEFAULT}

/* As df2_target_options_init. */
DF2_API int32_t df2_drafter_options_init(df2_drafter_options *options, size_t size);

typedef struct df2_drafter_info {
  uint32_t struct_size;
  int32_t version; /* 1: DFlash, 2: DFlash2 (convolutions and selector) */
  int32_t n_layer;
  int32_t n_embd;
  int32_t n_vocab; /* rows of the tokenizer in the file */
  int32_t n_head;
  int32_t n_head_kv;
  int32_t block_size;
  int32_t conv_kernel_size; /* 0 for version 1, as the next three */
  int32_t conv_group_size;
  int32_t selector_rank;
  int32_t selector_top_k;
  int32_t window;                   /* sliding window in tokens; 0: every layer attends to everything */
  int32_t n_taps;                   /* target layers tapped */
  int32_t tap_layers[DF2_MAX_TAPS]; /* counted as layer inputs: k means the output of layer k - 1, from 1 */
  int32_t mask_token;               /* token id */
  int32_t is_causal;                /* whether block positions attend only to earlier ones, in all layers */
  uint64_t weights_bytes;           /* tensor data in the file, memory-mapped */
  uint64_t packed_bytes;            /* weights packed for the kernels; their part of the file is not kept in memory */
} df2_drafter_info;

/* Loads a GGUF of architecture `dflash`, written by `pydflash2 convert` or by llama.cpp's own converter. The weights
 * stay memory-mapped, but for those that are packed if there is memory for it. Every count, shape, type and offset is
 * checked against the others before ggml sees them. The first call of a process enables the kernels, as df2_target_open
 * does. Errors: DF2_EIO, DF2_EFORMAT (damaged, or not a drafter), DF2_EUNSUPPORTED (a dflash variant without support
 * here), DF2_EMISMATCH (a version that options.version does not allow), DF2_EBACKEND, DF2_EINVAL, DF2_ENOMEM. On
 * failure *out is NULL. */
DF2_API int32_t df2_drafter_load(df2_drafter **out, const char *path, const df2_drafter_options *options);

/* Fills in *info; info->struct_size must be set. DF2_EINVAL otherwise. Any thread. */
DF2_API int32_t df2_drafter_info_get(const df2_drafter *drafter, df2_drafter_info *info);

/* Sessions keep what they need alive: a drafter may be freed before them. */
DF2_API void df2_drafter_free(df2_drafter *drafter);

/* ---------------------------------------------------------------------------------------------------------------
 * Session: one sequence of tokens on one target
 * ------------------------------------------------------------------------------------------------------------ */

typedef struct df2_session_options {
  uint32_t struct_size;
  int32_t n_draft;         /* tokens drafted per cycle, at most block_size - 1; 0: none; -1: chosen while running,
                              cycle by cycle, from measured cost and acceptance and from how sure the drafter is.
                              A cycle drafts fewer where the target cannot drop as many: of recurrent states no more
                              than 8 with kept inputs, 7 with snapshots */
  int32_t window;          /* most context tokens a full-attention drafter layer attends to; 0: 2048, or the trained
                              context length if that is shorter. Layers with a window of their own keep it */
  int32_t cache_type;      /* df2_cache_type of the drafter's K/V cache; blocks must fit its heads (DF2_EINVAL) */
  int32_t ignore_end;      /* non-zero: go on after an end-of-generation token */
  int32_t n_threads_draft; /* threads that draft, at most the target's n_threads; 0: as many */
  const char *profiles;    /* a folder for what choosing the length has taught about a pair on a machine, so that later
                              processes begin with it; made when something is first kept. NULL: sessions of this process
                              alone share it. Files that are missing, damaged or of another version, and a folder that
                              cannot be written, are as if there were none */
  /* Most memory for checkpoints: copies of a target's recurrent state that a rewind goes back to. 0: none, nor does a
     rewind begin anew; -1: 512 MiB, at most an eighth of what is available. It is taken as the text grows, and only for
     targets with such a state and without a sliding window. */
  int64_t checkpoint_bytes;
} df2_session_options;

#define DF2_SESSION_OPTIONS_INIT {sizeof(df2_session_options), -1, 0, DF2_CACHE_F16, 0, 0, NULL, -1}

/* As df2_target_options_init. */
DF2_API int32_t df2_session_options_init(df2_session_options *options, size_t size);

/* Starts an empty sequence: clears the target's memory, with a warning if sequence 0 holds anything but what an earlier
 * session on this target has left. drafter may be NULL: the session then decodes token by token, reads no taps, and is
 * what "plain decoding" means in this project's measurements.
 * Errors: DF2_EMISMATCH (drafter and target do not belong together), DF2_EUNSUPPORTED (a context that cannot go back,
 * head or embeddings not in CPU memory, architecture without taps), DF2_EBACKEND, DF2_EINVAL, DF2_ENOMEM.
 * On failure *out is NULL and the target may be used on. One session per llama_context at a time (DF2_EINVAL). */
DF2_API int32_t df2_session_create(df2_session **out, df2_target *target, const df2_drafter *drafter,
                                   const df2_session_options *options);

/* Before its target is freed. What the target's memory holds stays there. */
DF2_API void df2_session_free(df2_session *session);

/* Chooses how tokens are picked: NULL (the default) takes the target's most probable token, the lowest id among
 * equals; otherwise any llama_sampler chain, borrowed until replaced or the session is freed. Drafted tokens are kept
 * while the chain, run on the target's logits, picks the same ones, so the output is distributed exactly as without
 * drafting, and the same for the same seed (docs/identity.md). The chain sees (accepts) every token
 * it picks. */
DF2_API int32_t df2_session_set_sampler(df2_session *session, struct llama_sampler *sampler);

/* Changes df2_session_options.n_draft from the next step on. DF2_EINVAL if out of range; nothing changes then. */
DF2_API int32_t df2_session_set_n_draft(df2_session *session, int32_t n_draft);

/* Appends tokens to the sequence and decodes them, in batches of the context's n_batch. May be called again at any
 * time, e.g. for the next turn of a chat. tokens: n_tokens ids, each in [0, vocabulary).
 * Errors: DF2_EINVAL, DF2_ECONTEXT (nothing was decoded), DF2_EBACKEND, DF2_EPOISONED (the target's memory could not be
 * restored, for want of checkpoints). After all but the last the sequence is as before. */
DF2_API int32_t df2_session_prefill(df2_session *session, const int32_t *tokens, int32_t n_tokens);

typedef struct df2_step_result {
  int32_t n_tokens;   /* tokens written */
  int32_t n_drafted;  /* tokens drafted and verified in this cycle */
  int32_t n_accepted; /* how many of them were kept: the first n_accepted tokens written were drafted */
  int32_t is_end;     /* 1: the last token written ends the generation (never 1 with ignore_end) */
} df2_step_result;

/* Generates the next tokens and appends them to the sequence. Right after a prefill this is one token, at no decoding
 * cost; otherwise one cycle: draft, verify, accept.
 * tokens: room for `capacity` >= 1 ids; at most that many are generated, and at most DF2_MAX_DRAFT + 1.
 * Errors: DF2_EINVAL (also: nothing prefilled, or a sampler chain that selects no token), DF2_ECONTEXT (no room for one
 * token: rewind), DF2_EBACKEND, DF2_EPOISONED (also: the target's logits are NaN or infinite). On failure
 * result->n_tokens is 0 and, but for DF2_EPOISONED, the sequence is as before; a sampler chain may have accepted tokens
 * that were then dropped. A drafter that gives NaN or infinity is no error: df2_log_set's callback is told, and the
 * session drafts no more. */
DF2_API int32_t df2_session_step(df2_session *session, int32_t *tokens, int32_t capacity, df2_step_result *result);

/* Cuts the sequence to its first n_tokens tokens, in the target's memory and the drafter's cache alike. Generation
 * then continues from the last kept token. The sampler is not rewound: reset it if it has memory.
 * Where the memory cannot drop tokens alone (a recurrent state, a cache that is cut to a sliding window), it goes back
 * to the last checkpoint before that place, or to nothing if there is none; the next prefill or step decodes what lies
 * between (df2_stats.n_recomputed). The drafter sees those tokens again, and has of the ones before them what its
 * window still holds. Errors: DF2_EINVAL (n_tokens out of range), DF2_EREWIND (without checkpoints: a sliding-window
 * target has dropped what it would need, or one with a recurrent state has kept none from before that: rewind to 0 and
 * prefill again). On failure nothing changed. Without checkpoints a recurrent state can be rewound to where the last
 * cycle began, unless the context has snapshots (n_rs_seq) of another kind of state than delta nets, or fewer of them
 * than the cycle had rows. */
DF2_API int32_t df2_session_rewind(df2_session *session, int32_t n_tokens);

/* Keeps what choosing the draft length has taught, for sessions to come: in this process, and in
 * df2_session_options.profiles. df2_session_free does so too: this is for programs that may end without it, e.g. after
 * each text. Never fails; nothing happens if there is nothing new, or for NULL. */
DF2_API void df2_session_save_profile(df2_session *session);

/* Length of the sequence: prompt and generated tokens. 0 for NULL. */
DF2_API int32_t df2_session_n_tokens(const df2_session *session);

/* How to draft. */
typedef struct df2_draft_options {
  uint32_t struct_size;
  int32_t n_draft;       /* tokens to draft, 1 .. block_size - 1 */
  float temperature;     /* 0: each position's best score; above: drawn from softmax(scores / temperature) */
  uint32_t reserved;     /* 0 */
  const float *uniforms; /* [n_draft] in [0, 1): the numbers to draw with; not read at temperature 0 */
} df2_draft_options;

#define DF2_DRAFT_OPTIONS_INIT {sizeof(df2_draft_options), 1, 0.0f, 0, NULL}

/* As df2_target_options_init. */
DF2_API int32_t df2_draft_options_init(df2_draft_options *options, size_t size);

/* A draft as the drafter sees it; pointers are borrowed until the session's next call. */
typedef struct df2_draft {
  uint32_t struct_size;
  int32_t n_draft;      /* drafted tokens */
  int32_t n_candidates; /* per position: selector_top_k, or 1 for version 1 */
  int32_t n_embd;
  int32_t n_vocab;           /* columns of logits: rows of the head, in a reduced vocabulary not token ids */
  const int32_t *tokens;     /* [n_draft] the selector's path */
  const int32_t *candidates; /* [n_draft][n_candidates] target ids, best logit first */
  const float *scores;       /* [n_draft][n_candidates] logit plus transition from the path's previous token */
  const float *q;            /* [n_draft][n_candidates] softmax(scores / temperature); greedy: at temperature 1 */
  const float *tokens_q;     /* [n_draft] q of the path's tokens */
  const float *hidden;       /* [n_draft + 1][n_embd] after the final norm, anchor first */
  const float *logits;       /* [n_draft][n_vocab] after multiplier and softcap */
} df2_draft;

/* Drafts after the current sequence and verifies nothing: for inspection and tests. options may be NULL: one token,
 * greedy. The sequence is unchanged; the last token must be undecided, i.e. come from a step or a rewind, not from a
 * prefill (DF2_EINVAL, as for options out of range). Other errors as df2_session_step. */
DF2_API int32_t df2_session_draft(df2_session *session, const df2_draft_options *options, df2_draft *draft);

typedef struct df2_stats {
  uint32_t struct_size;
  uint32_t reserved;
  /* Wall time by phase, microseconds. other_us: everything within prefill and step calls that is not the rest. */
  uint64_t prefill_us; /* target decoding of prompts, their injection into the drafter's cache, and n_recomputed's */
  uint64_t draft_us;   /* drafter graphs: injection, block, selection */
  uint64_t verify_us;  /* target decoding of blocks and of single tokens */
  uint64_t accept_us;  /* argmax or sampling on the target's logits */
  uint64_t other_us;
  uint64_t n_prefill; /* tokens decoded by prefills, those decoded again included */
  uint64_t n_cycles;  /* verify passes, with or without a draft */
  uint64_t n_generated;
  uint64_t n_drafted;
  uint64_t n_accepted;
  uint64_t drafted_at[DF2_MAX_DRAFT];  /* how often position i (from 0) was verified */
  uint64_t accepted_at[DF2_MAX_DRAFT]; /* how often it was accepted */
  /* Memory, bytes. None of these depends on the target's context length. */
  uint64_t drafter_cache_bytes;
  uint64_t drafter_compute_bytes;
  uint64_t drafter_weights_bytes; /* memory-mapped */
  uint64_t drafter_packed_bytes;  /* weights packed for the kernels */
  uint64_t target_packed_bytes;   /* the same of the target, all that its graph uses */
  uint64_t target_copied_bytes;   /* how much of that is a second copy, of embeddings that are also the head */
  uint64_t n_replayed; /* tokens decoded again: what was kept of blocks whose rest a recurrent target could not drop */
  uint64_t target_rewind_bytes; /* copies of the recurrent state that going back takes; 0: attention alone */
  /* Checkpoints: those held now and their memory, whatever was reset. */
  uint64_t n_checkpoints;
  uint64_t checkpoint_bytes;
  uint64_t n_restored;   /* times the target's memory went back to a checkpoint, or to nothing for want of one */
  uint64_t n_recomputed; /* tokens decoded again after a rewind that did */
} df2_stats;

/* Fills in *stats since creation or the last reset; stats->struct_size must be set (DF2_EINVAL otherwise).
 * Acceptance length is (n_accepted + n_cycles) / n_cycles. */
DF2_API int32_t df2_session_stats_get(const df2_session *session, df2_stats *stats);

/* Zeroes the counters and times; the memory figures and what the draft-length choice has learnt stay. */
DF2_API void df2_session_stats_reset(df2_session *session);

/* ---------------------------------------------------------------------------------------------------------------
 * Plan: what a target and its drafter take of the memory
 * ------------------------------------------------------------------------------------------------------------ */

/* Bytes. Left out is what does not grow with what is asked for: the vocabulary, graphs, the program; tens of MB. */
typedef struct df2_plan {
  uint32_t struct_size;
  int32_t n_ctx;            /* as llama.cpp rounds it; less than asked for, by millions, if that does not fit */
  int32_t kernels;          /* 1: where they can be used; 0: off, or there is no room for packed weights */
  int32_t reserved;         /* 0 */
  uint64_t available_bytes; /* what the machine and the process's control groups have, files that are only cached
                               included, or max_bytes if that is less; UINT64_MAX: nothing tells */
  uint64_t total_bytes;     /* what stays in memory: the sum of all that follow but the mapped ones and checkpoints */
  /* Weights that are read where their file is mapped. The system drops such pages when memory is short and reads them
     again, so that it is slow, but no error, if there is no room for them beside the total. */
  uint64_t target_mapped_bytes;
  uint64_t drafter_mapped_bytes;
  uint64_t target_packed_bytes;  /* packed for the kernels; their pages of the file are not kept */
  uint64_t target_copied_bytes;  /* in other memory: what llama.cpp repacks, or all if the file cannot be mapped */
  uint64_t attention_bytes;      /* K/V caches of the whole context */
  uint64_t window_bytes;         /* K/V caches of sliding windows */
  uint64_t state_bytes;          /* recurrent state */
  uint64_t rewind_bytes;         /* copies of it that going back takes: a mark, or snapshots */
  uint64_t compute_bytes;        /* buffers of the target's graph */
  uint64_t work_bytes;           /* what the threads that compute it share */
  uint64_t logits_bytes;         /* of a verify, or of a prompt's batch where every row asks for them */
  uint64_t drafter_packed_bytes; /* packed, or in memory because the file cannot be mapped */
  uint64_t drafter_cache_bytes;
  uint64_t drafter_compute_bytes;
  uint64_t drafter_features_bytes; /* hidden states of a prompt's batch */
  uint64_t checkpoint_bytes;       /* most that copies for long rewinds take besides (df2_session_options); not in the
                                      total */
  const char *note;    /* what opening does otherwise than asked, or why it will be slow; "" if there is nothing. Valid
                          until the thread's next call, as the next */
  const char *problem; /* "" if it fits; otherwise what df2_target_open fails with, drafter included */
} df2_plan;

/* Says what df2_target_open, df2_drafter_load and df2_session_create will take, for these files and options, without
 * loading the weights: from the files' headers, and by making everything else in memory that is never written to. Takes
 * as long as reading a vocabulary. drafter_path: NULL for none. Options may be NULL: defaults. plan->struct_size must
 * be set. A lack of memory is no error, but plan->problem. Errors: those of the three functions; *plan is unchanged
 * then. As df2_target_open, it enables the kernels and sets llama.cpp's log callback for a while. */
DF2_API int32_t df2_target_plan(df2_plan *plan, const char *target_path, const df2_target_options *target_options,
                                const char *drafter_path, const df2_drafter_options *drafter_options,
                                const df2_session_options *session_options);

#ifdef __cplusplus
}
#endif

#endif /* DFLASH2_H */
