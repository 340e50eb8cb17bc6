// Happens-before inside a launch.
//
// A stamp packs epoch, clock, thread, access kind and code offset of one access. The epoch counts starts and barriers of
// blocks in this process, so an access of an earlier epoch of the same block happened before without further ado. Inside
// an epoch, __syncwarp and named barriers order some threads only: every thread has a vector of clocks, as in FastTrack
// (Flanagan and Freund, 2009), joined at these points. Vectors are made when first needed in an epoch.
//
// Lossy on purpose, always towards missing a race and never towards inventing one: more than 2,047 partial barriers of
// one thread in an epoch start a new epoch, and 2^20 epochs forget all stamps.

#include <algorithm>
#include <cstring>

#include "machine.h"

namespace {
constexpr unsigned EPOCH_BITS = 20, CLOCK_BITS = 11, THREAD_BITS = 10, KIND_BITS = 1, PC_BITS = 22;
static_assert(EPOCH_BITS + CLOCK_BITS + THREAD_BITS + KIND_BITS + PC_BITS == 64);
constexpr unsigned LAST_CLOCK = (1u << CLOCK_BITS) - 1;

uint32_t epoch = 1, launch_epoch = 1, block_epoch = 1;
bool earlier_blocks_ordered;

int16_t known[MAX_THREADS][MAX_THREADS];  // known[t][u]: the last clock of u that t has synchronised with
uint32_t known_epoch[MAX_THREADS];        // the row is valid in this epoch
int16_t joined[MAX_THREADS];
int16_t carried[NAMED_BARRIERS][MAX_THREADS];  // what those know who arrived at a barrier without waiting
uint32_t carried_epoch[NAMED_BARRIERS];
uint32_t wide_epoch;  // in this epoch a barrier has joined threads of several warps

uint32_t stamp_epoch(Stamp s) { return uint32_t(s >> (64 - EPOCH_BITS)); }
unsigned stamp_clock(Stamp s) { return unsigned(s >> (THREAD_BITS + KIND_BITS + PC_BITS)) & LAST_CLOCK; }
unsigned stamp_thread(Stamp s) { return unsigned(s >> (KIND_BITS + PC_BITS)) & (MAX_THREADS - 1); }

// known[t][t] is t's own clock: how many partial barriers it has passed in this epoch.
int16_t* row(unsigned thread) {
    if (known_epoch[thread] != epoch) {
        std::memset(known[thread], 0, machine.count * sizeof known[0][0]);
        known[thread][thread] = 1;
        known_epoch[thread] = epoch;
    }
    return known[thread];
}

unsigned own_clock(unsigned thread) { return known_epoch[thread] == epoch ? unsigned(known[thread][thread]) : 1; }

void next_epoch() {
    if (++epoch < 1u << EPOCH_BITS) return;
    memory_forget_order();
    std::memset(known_epoch, 0, sizeof known_epoch);
    std::memset(carried_epoch, 0, sizeof carried_epoch);
    wide_epoch = 0;
    epoch = launch_epoch = block_epoch = 1;
}
}  // namespace

void order_start_launch() {
    next_epoch();
    launch_epoch = epoch;
}

void order_start_block() {
    next_epoch();
    block_epoch = epoch;
    earlier_blocks_ordered = false;
}

void order_block_barrier() { next_epoch(); }

void order_arrive(int barrier) {
    const unsigned me = self().id;
    int16_t* r = row(me);
    if (carried_epoch[barrier] != epoch) std::memset(carried[barrier], 0, sizeof carried[barrier]);
    carried_epoch[barrier] = wide_epoch = epoch;
    for (unsigned u = 0; u < machine.count; u++) carried[barrier][u] = std::max(carried[barrier][u], r[u]);
    if (unsigned(++r[me]) == LAST_CLOCK) next_epoch();
}

void order_join(const unsigned* threads, unsigned count, int barrier) {
    if (!count) return;
    // As long as only warps have synchronised in this epoch, a thread knows nothing of other warps.
    const unsigned warp = threads[0] / WARP * WARP;
    if (threads[count - 1] >= warp + WARP) wide_epoch = epoch;
    const bool wide = wide_epoch == epoch;
    const unsigned first = wide ? 0 : warp, n = wide ? machine.count : std::min(WARP, machine.count - warp);
    std::memset(joined, 0, n * sizeof joined[0]);
    if (barrier && carried_epoch[barrier] == epoch) {
        std::memcpy(joined, carried[barrier], n * sizeof joined[0]);
        carried_epoch[barrier] = 0;
    }
    for (unsigned i = 0; i < count; i++) {
        const int16_t* r = row(threads[i]) + first;
        for (unsigned u = 0; u < n; u++) joined[u] = std::max(joined[u], r[u]);
    }
    bool full = false;
    for (unsigned i = 0; i < count; i++) {
        int16_t* r = row(threads[i]);
        std::memcpy(r + first, joined, n * sizeof joined[0]);
        full |= unsigned(++r[threads[i]]) == LAST_CLOCK;
    }
    if (full) next_epoch();
}

void order_join_earlier_blocks() { earlier_blocks_ordered = true; }

Stamp order_stamp(int access_kind, uint64_t pc) {
    const uint64_t thread = self().id;
    Stamp s = epoch;
    s = s << CLOCK_BITS | own_clock(unsigned(thread));
    s = s << THREAD_BITS | thread;
    s = s << KIND_BITS | uint64_t(access_kind == ATOMIC);
    return s << PC_BITS | ((pc - machine.code_base) & ((1u << PC_BITS) - 1));
}

Order order_of(Stamp earlier) {
    const uint32_t when = stamp_epoch(earlier);
    if (when < launch_epoch) return BEFORE;
    if (when < block_epoch) return earlier_blocks_ordered ? BEFORE : OTHER_BLOCK;
    if (when < epoch) return BEFORE;
    const unsigned thread = stamp_thread(earlier), me = self().id;
    if (thread == me) return BEFORE;
    const bool seen = known_epoch[me] == epoch && stamp_clock(earlier) <= unsigned(known[me][thread]);
    return seen ? BEFORE : CONCURRENT;
}

bool order_of_this_block(Stamp s) { return stamp_epoch(s) >= block_epoch; }

Access order_access(Stamp s) {
    const bool atomic = s >> PC_BITS & 1;
    return {(s & ((1u << PC_BITS) - 1)) + machine.code_base, stamp_thread(s), atomic ? ATOMIC : WRITE};
}
