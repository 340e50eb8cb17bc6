// What the parts of the runtime share: the running block, its threads, regions of memory, faults.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fiber.h"

constexpr unsigned MAX_THREADS = 1024;
constexpr unsigned WARP = 32;
constexpr unsigned NAMED_BARRIERS = 16;
constexpr size_t STACK_BYTES = 128 << 10;

struct Dim {
    unsigned x, y, z;
};

struct Site {
    const char* file;
    int line;
};

// ---- faults; emulate.py and faults.py mirror these two structs and enums ----

enum FaultKind { NO_FAULT, OUT_OF_BOUNDS, MISALIGNED, CONST_WRITE, UNWRITTEN_READ, RACE, BLOCK_RACE, SYNC, TRAP };
enum AccessKind { READ, WRITE, ATOMIC };

struct Access {
    uint64_t pc;
    unsigned thread;
    int kind;
};

struct Fault {
    int kind;
    Dim block;
    uint64_t address;
    unsigned size;
    int region;  // index, or -1
    Access access, other;
    char detail[512];
};

enum RegionKind { CONSTANT, GLOBAL, OUTPUT, SHARED };

struct Region {
    uint64_t begin, end;
    uint64_t shadow;  // index of the first byte's cell
    int kind;
};

// ---- threads ----

enum ThreadState { RUNNABLE, IN_BARRIER, IN_WARP, DONE };

struct Thread {
    Context context;
    char* stack;
    Dim index;
    unsigned id;
    ThreadState state;
    Site site;      // of the barrier or warp operation it waits in
    int barrier;    // which one; 0 is __syncthreads
    int operation;  // warp operation: kind, mask, deposit, source lane, result
    unsigned mask;
    uint64_t value;
    int source;
    uint64_t result;
};

struct Machine {
    Thread threads[MAX_THREADS];
    unsigned count;  // threads of a block
    Dim grid, block_size, block;
    void (*kernel)(void**);
    void** arguments;
    void* dynamic_shared;
    uint64_t code_base;  // load address of the kernel's library
    Context scheduler;
    Fault fault;
    uint64_t accesses, switches;
};

extern Machine machine;
extern "C" Thread* cuda_on_cpu_current;  // null outside kernels

inline Thread& self() { return *cuda_on_cpu_current; }

// Fills machine.fault's common part and leaves the launch for good; `detail` is in printf's manner.
[[noreturn]] void fail(FaultKind kind, const char* detail, ...) __attribute__((format(printf, 2, 3)));
[[noreturn]] void abandon_launch();
const char* base_name(const char* path);

// ---- order.cpp: what happened before what ----

void order_start_launch();
void order_start_block();
void order_block_barrier();
// A barrier of these threads only; `barrier` is a named one's id, whose earlier arrivals count too, or 0.
void order_join(const unsigned* threads, unsigned count, int barrier);
void order_arrive(int barrier);  // at a named barrier, without waiting
void order_join_earlier_blocks();                          // an atomic that saw another block's atomic

using Stamp = uint64_t;  // who accessed a byte and when; 0 is nobody
enum Order { BEFORE, CONCURRENT, OTHER_BLOCK };

Stamp order_stamp(int access_kind, uint64_t pc);
Order order_of(Stamp earlier);
bool order_of_this_block(Stamp);
Access order_access(Stamp);

// ---- copies.cpp ----

void copies_start_block();

// ---- memory.cpp ----

void memory_start_block();
void memory_access(uint64_t address, unsigned size, int kind, bool aligned, uint64_t pc);
void memory_forget_order();  // drops all stamps
