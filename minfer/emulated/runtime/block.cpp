// Runs a launch: blocks one after the other, the threads of a block as fibers that switch where they wait.

#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "machine.h"

Machine machine;
extern "C" Thread* cuda_on_cpu_current;
Thread* cuda_on_cpu_current;

namespace {
struct Barrier {
    unsigned arrived, expected;
    Site site;
    int counted, result;  // predicates of __syncthreads_count
};
Barrier barriers[NAMED_BARRIERS];

struct Warp {
    unsigned alive, waiting;  // bit per lane
};
Warp warps[MAX_THREADS / WARP];
enum { SYNCWARP, SHUFFLE, BALLOT, MATCH };

// Tops of stacks that are a power of two apart would share the same few cache lines.
char* stack_top(const Thread& t) { return t.stack + STACK_BYTES - (t.id % 64) * 192; }

void wait() {
    Thread& t = self();
    machine.switches++;
    context_switch(&t.context, &machine.scheduler);
}

void leave_warp(unsigned warp, unsigned lane);

void thread_main() {
    machine.kernel(machine.arguments);
    self().state = DONE;
    leave_warp(self().id / WARP, self().id % WARP);
    context_switch(&self().context, &machine.scheduler);
    __builtin_unreachable();
}

bool make_stacks() {
    if (machine.threads[0].stack) return true;
    // A page without access between two stacks turns an overflow into a crash instead of a mystery.
    const size_t stride = STACK_BYTES + 4096;
    char* all = static_cast<char*>(mmap(nullptr, stride * MAX_THREADS, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (all == MAP_FAILED) return false;
    for (unsigned i = 0; i < MAX_THREADS; i++) {
        mprotect(all + i * stride, 4096, PROT_NONE);
        machine.threads[i].stack = all + i * stride + 4096;
        machine.threads[i].id = i;
    }
    return true;
}

void start_thread(unsigned id) {
    Thread& t = machine.threads[id];
    const Dim size = machine.block_size;
    t.index = {id % size.x, id / size.x % size.y, id / (size.x * size.y)};
    t.state = RUNNABLE;
    warps[id / WARP].alive |= 1u << id % WARP;
    context_start(t.context, t.stack, stack_top(t), thread_main);
}

// Runs every runnable thread of a warp until it waits or ends; true if any ran.
bool run_warp(unsigned first, unsigned end) {
    bool any = false;
    for (unsigned id = first; id < end; id++) {
        Thread& t = machine.threads[id];
        if (t.state != RUNNABLE) continue;
        any = true;
        cuda_on_cpu_current = &t;
        context_switch(&machine.scheduler, &t.context);
        if (machine.fault.kind) break;
    }
    cuda_on_cpu_current = nullptr;
    return any && !machine.fault.kind;
}

bool run_warps() {
    bool any = false;
    for (unsigned first = 0; first < machine.count && !machine.fault.kind; first += WARP) {
        const unsigned end = first + WARP < machine.count ? first + WARP : machine.count;
        while (run_warp(first, end)) any = true;  // a warp goes on until all of it waits for other warps
    }
    return any;
}

unsigned count_state(ThreadState state) {
    unsigned n = 0;
    for (unsigned i = 0; i < machine.count; i++) n += machine.threads[i].state == state;
    return n;
}

// Nobody can run: names the first waiting thread and what it waits for.
void report_stuck() {
    unsigned id = 0;
    while (machine.threads[id].state == DONE) id++;
    Thread& t = machine.threads[id];
    cuda_on_cpu_current = &t;
    Fault& f = machine.fault;
    f.kind = SYNC;
    f.block = machine.block;
    f.access.thread = id;
    const unsigned returned = count_state(DONE);
    const char* file = base_name(t.site.file);
    if (t.state == IN_WARP)
        std::snprintf(f.detail, sizeof f.detail,
                      "%s:%d: warp operation with mask 0x%08x that not all of its lanes reach (%u threads returned)",
                      file, t.site.line, t.mask, returned);
    else
        std::snprintf(f.detail, sizeof f.detail,
                      "%s:%d: barrier %d reached by %u of %u threads; %u returned, %u wait elsewhere", file,
                      t.site.line, t.barrier, barriers[t.barrier].arrived, barriers[t.barrier].expected, returned,
                      machine.count - returned - barriers[t.barrier].arrived);
    cuda_on_cpu_current = nullptr;
}

void run_block() {
    std::memset(barriers, 0, sizeof barriers);
    std::memset(warps, 0, sizeof warps);
    order_start_block();
    memory_start_block();
    copies_start_block();
    for (unsigned id = 0; id < machine.count; id++) start_thread(id);
    while (run_warps()) {}
    if (!machine.fault.kind && count_state(DONE) < machine.count) report_stuck();
}

// ---- barriers ----

void check_same_site(const Barrier& b, int id, const Site& site) {
    if (b.site.line == site.line && !std::strcmp(b.site.file, site.file)) return;
    fail(SYNC, "%s:%d: barrier %d, while %u threads wait for it at %s:%d", base_name(site.file), site.line, id,
         b.arrived, base_name(b.site.file), b.site.line);
}

void release(int id) {
    static unsigned waiters[MAX_THREADS];
    unsigned n = 0;
    for (unsigned i = 0; i < machine.count; i++) {
        Thread& t = machine.threads[i];
        if (t.state != IN_BARRIER || t.barrier != id) continue;
        t.state = RUNNABLE;
        waiters[n++] = i;
    }
    Barrier& b = barriers[id];
    b.arrived = 0;
    b.result = b.counted;
    b.counted = 0;
    if (n == machine.count) order_block_barrier();
    else order_join(waiters, n, id);
}

void arrive(int id, unsigned expected, Site site, bool waits) {
    Barrier& b = barriers[id];
    Thread& t = self();
    if (b.arrived && b.expected != expected)
        fail(SYNC, "%s:%d: barrier %d of %u threads, while others wait for it as one of %u", base_name(site.file),
             site.line, id, expected, b.expected);
    b.expected = expected;
    b.site = t.site = site;
    t.barrier = id;
    if (waits) t.state = IN_BARRIER;
    else order_arrive(id);
    if (++b.arrived == expected) release(id);
    if (t.state == IN_BARRIER) wait();
}

// ---- warps ----

uint64_t warp_result(const Thread* lanes, const Thread& t, unsigned group) {
    uint64_t result = 0;
    if (t.operation == SHUFFLE) return lanes[t.source].value;
    for (unsigned lane = 0; lane < WARP; lane++) {
        if (!(group >> lane & 1)) continue;
        const bool hit = t.operation == BALLOT ? lanes[lane].value != 0 : lanes[lane].value == t.value;
        result |= uint64_t(hit) << lane;
    }
    return result;
}

void check_member(const Thread& first, Thread& t, unsigned group) {
    const bool other_kind = t.operation != first.operation;
    const bool absent = t.operation == SHUFFLE && !(group >> t.source & 1);
    if (other_kind || absent) cuda_on_cpu_current = &t;  // the fault is this lane's
    if (other_kind)
        fail(SYNC, "%s:%d: a warp operation, while lane %u takes part in another kind of operation at %s:%d",
             base_name(t.site.file), t.site.line, first.id % WARP, base_name(first.site.file), first.site.line);
    if (absent)
        fail(SYNC, "%s:%d: shuffle reads lane %d, which does not take part (mask 0x%08x, taking part 0x%08x)",
             base_name(t.site.file), t.site.line, t.source, t.mask, group);
}

void complete_group(unsigned warp, unsigned group) {
    Thread* lanes = &machine.threads[warp * WARP];
    const Thread& first = lanes[__builtin_ctz(group)];
    unsigned members[WARP], n = 0;
    for (unsigned rest = group; rest; rest &= rest - 1) {
        const unsigned lane = unsigned(__builtin_ctz(rest));
        check_member(first, lanes[lane], group);
        lanes[lane].result = warp_result(lanes, lanes[lane], group);
        members[n++] = warp * WARP + lane;
    }
    for (unsigned i = 0; i < n; i++) machine.threads[members[i]].state = RUNNABLE;
    warps[warp].waiting &= ~group;
    if (first.operation == SYNCWARP) order_join(members, n, 0);
}

// Lanes that wait with the same mask form a group; it is complete when every living lane of the mask is in it.
void finish_warp_operation(unsigned warp, unsigned mask) {
    const Thread* lanes = &machine.threads[warp * WARP];
    const unsigned expected = mask & warps[warp].alive;
    if (!expected || expected & ~warps[warp].waiting) return;
    for (unsigned rest = expected; rest; rest &= rest - 1)
        if (lanes[__builtin_ctz(rest)].mask != mask) return;
    complete_group(warp, expected);
}

// Lanes that waited for one that has returned need not wait any more.
void leave_warp(unsigned warp, unsigned lane) {
    warps[warp].alive &= ~(1u << lane);
    for (unsigned rest = warps[warp].waiting; rest; rest &= rest - 1) {
        const unsigned other = unsigned(__builtin_ctz(rest));
        if (warps[warp].waiting >> other & 1) finish_warp_operation(warp, machine.threads[warp * WARP + other].mask);
    }
}
}  // namespace

const char* base_name(const char* path) {
    const char* slash = std::strrchr(path, '/');
    return slash ? slash + 1 : path;
}

void fail(FaultKind kind, const char* detail, ...) {
    Fault& f = machine.fault;
    f.kind = kind;
    f.block = machine.block;
    if (!f.access.pc) f.access.thread = self().id;
    va_list list;
    va_start(list, detail);
    std::vsnprintf(f.detail, sizeof f.detail, detail, list);
    va_end(list);
    abandon_launch();
}

void abandon_launch() {
    static Context nowhere;
    context_switch(&nowhere, &machine.scheduler);
    __builtin_unreachable();
}

extern "C" {
Dim cuda_on_cpu_thread() { return self().index; }
Dim cuda_on_cpu_block() { return machine.block; }
Dim cuda_on_cpu_block_size() { return machine.block_size; }
Dim cuda_on_cpu_grid_size() { return machine.grid; }
void* cuda_on_cpu_dynamic_shared() { return machine.dynamic_shared; }
int cuda_on_cpu_lane() { return int(self().id % WARP); }

int cuda_on_cpu_sync_block(int predicate, const char* file, int line) {
    Barrier& b = barriers[0];
    const Site site{file, line};
    if (b.arrived) check_same_site(b, 0, site);
    b.counted += predicate != 0;
    arrive(0, machine.count, site, true);
    return b.result;
}

void cuda_on_cpu_sync_named(int id, int count, int waits, const char* file, int line) {
    if (id < 0 || id >= int(NAMED_BARRIERS) || count <= 0 || count % WARP)
        fail(SYNC, "%s:%d: barrier %d of %d threads: ids go from 0 to 15, counts are multiples of 32", base_name(file),
             line, id, count);
    arrive(id, unsigned(count), {file, line}, waits);
}

uint64_t cuda_on_cpu_warp(int operation, unsigned mask, uint64_t value, int source, const char* file, int line) {
    Thread& t = self();
    if (!(mask >> t.id % WARP & 1))
        fail(SYNC, "%s:%d: warp operation with mask 0x%08x by lane %u, which is not in it", base_name(file), line, mask,
             t.id % WARP);
    t.site = {file, line};
    t.operation = operation;
    t.mask = mask;
    t.value = value;
    t.source = source;
    t.state = IN_WARP;
    warps[t.id / WARP].waiting |= 1u << t.id % WARP;
    finish_warp_operation(t.id / WARP, mask);
    if (t.state == IN_WARP) wait();
    return t.result;
}

void cuda_on_cpu_trap(const char* file, int line) { fail(TRAP, "%s:%d: __trap()", base_name(file), line); }

// Returns the fault, or null.
const Fault* cuda_on_cpu_launch(void (*kernel)(void**), void** arguments, const Dim* grid, const Dim* block_size,
                                void* dynamic_shared) {
    Dl_info library;
    if (!make_stacks() || !dladdr(reinterpret_cast<void*>(kernel), &library)) return nullptr;
    machine.fault = {};
    machine.accesses = machine.switches = 0;
    machine.kernel = kernel;
    machine.arguments = arguments;
    machine.grid = *grid;
    machine.block_size = *block_size;
    machine.count = block_size->x * block_size->y * block_size->z;
    machine.dynamic_shared = dynamic_shared;
    machine.code_base = uint64_t(library.dli_fbase);
    order_start_launch();
    Dim& b = machine.block;
    for (b.z = 0; b.z < grid->z; b.z++)
        for (b.y = 0; b.y < grid->y; b.y++)
            for (b.x = 0; b.x < grid->x && !machine.fault.kind; b.x++) run_block();
    return machine.fault.kind ? &machine.fault : nullptr;
}

uint64_t cuda_on_cpu_accesses() { return machine.accesses; }
uint64_t cuda_on_cpu_switches() { return machine.switches; }
}
