// Every load and store of a kernel arrives here: g++ -fsanitize=thread calls __tsan_read4(address) and the like, and
// these are our own. Bounds and alignment come from the table of regions, order from a shadow cell per byte.

#include <sys/mman.h>

#include <cstring>

#include "machine.h"

namespace {
// Readers: the first of this epoch, the latest one, and one of an earlier block.
struct Cell {
    Stamp written, first_read, last_read, foreign_read;
};

constexpr size_t ARENA_BYTES = size_t(4) << 30;  // reserved, not committed: pages appear when touched
constexpr unsigned PAGE_BITS = 12;

char* arena;
Cell* cells;
uint8_t* written;  // per byte: written by this launch (shared memory: by this block)
uint16_t page_region[ARENA_BYTES >> PAGE_BITS];  // 1 + index
const Region* regions;
unsigned region_count, last_region;

void* reserve(size_t bytes) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? nullptr : p;
}

bool inside(const Region& r, uint64_t address) { return address >= r.begin && address < r.end; }

// Arguments and dynamic shared memory lie in the arena, static shared arrays in the kernel's library.
const Region* find(uint64_t address) {
    const uint64_t offset = address - uint64_t(arena);
    if (offset < ARENA_BYTES) {
        const unsigned index = page_region[offset >> PAGE_BITS];
        return index && inside(regions[index - 1], address) ? &regions[index - 1] : nullptr;
    }
    if (last_region < region_count && inside(regions[last_region], address)) return &regions[last_region];
    for (unsigned i = 0; i < region_count; i++)
        if (inside(regions[i], address)) return &regions[last_region = i];
    return nullptr;
}

struct Now {
    uint64_t address, pc;
    unsigned size;
    int kind;
    const Region* region;
};

[[noreturn]] void report(FaultKind fault, const Now& now, Stamp other = 0, int other_kind = WRITE) {
    Fault& f = machine.fault;
    f.address = now.address;
    f.size = now.size;
    f.region = now.region ? int(now.region - regions) : -1;
    f.access = {now.pc, self().id, now.kind};
    if (other) f.other = order_access(other);
    if (other && f.other.kind != ATOMIC) f.other.kind = other_kind;
    fail(fault, "%s", "");
}

void check_order(const Now& now, Stamp other, int other_kind) {
    if (!other) return;
    const Order order = order_of(other);
    if (order == BEFORE) return;
    const bool both_atomic = now.kind == ATOMIC && order_access(other).kind == ATOMIC;
    if (both_atomic) return;
    if (order == OTHER_BLOCK && now.region->kind == SHARED) return;  // every block has its own
    report(order == CONCURRENT ? RACE : BLOCK_RACE, now, other, other_kind);
}

void note_read(Cell& cell, Stamp stamp) {
    if (cell.first_read && !order_of_this_block(cell.first_read)) {
        cell.foreign_read = cell.first_read;
        cell.first_read = 0;
    }
    // A reader that happened before this one is covered by it.
    if (!cell.first_read || order_of(cell.first_read) == BEFORE) cell.first_read = stamp;
    else cell.last_read = stamp;
}

void check_written(const Now& now, uint64_t at) {
    const int kind = now.region->kind;
    if (kind != SHARED && kind != OUTPUT) return;
    if (std::memchr(written + at, 0, now.size)) report(UNWRITTEN_READ, now);
}

void read_cells(const Now& now, uint64_t at, Stamp stamp) {
    for (Cell* cell = cells + at; cell != cells + at + now.size; cell++) {
        check_order(now, cell->written, WRITE);
        note_read(*cell, stamp);
    }
}

void write_cells(const Now& now, uint64_t at, Stamp stamp) {
    for (Cell* cell = cells + at; cell != cells + at + now.size; cell++) {
        check_order(now, cell->written, WRITE);
        check_order(now, cell->first_read, READ);
        check_order(now, cell->last_read, READ);
        check_order(now, cell->foreign_read, READ);
        if (now.kind == ATOMIC && cell->written && order_access(cell->written).kind == ATOMIC &&
            order_of(cell->written) == OTHER_BLOCK)
            order_join_earlier_blocks();
        cell->written = stamp;
    }
    std::memset(written + at, 1, now.size);
}
}  // namespace

void memory_access(uint64_t address, unsigned size, int kind, bool aligned, uint64_t pc) {
    if (!cuda_on_cpu_current || address - uint64_t(self().stack) < STACK_BYTES) return;
    machine.accesses++;
    const Region* region = find(address);
    const Now now{address, pc, size, kind, region};
    if (!region || address + size > region->end) report(OUT_OF_BOUNDS, now);
    if (aligned && address & (size - 1)) report(MISALIGNED, now);
    if (region->kind == CONSTANT) {
        if (kind != READ) report(CONST_WRITE, now);
        return;  // nobody writes it, so nothing races
    }
    const uint64_t at = region->shadow + (address - region->begin);
    if (kind != WRITE) check_written(now, at);
    const Stamp stamp = order_stamp(kind, pc);
    kind == READ ? read_cells(now, at, stamp) : write_cells(now, at, stamp);
}

void memory_forget_order() {
    madvise(cells, ARENA_BYTES * sizeof(Cell), MADV_DONTNEED);
}

void memory_start_block() {
    for (unsigned i = 0; i < region_count; i++)
        if (regions[i].kind == SHARED) std::memset(written + regions[i].shadow, 0, regions[i].end - regions[i].begin);
}

extern "C" {
// Null when the machine refuses the reservation.
char* cuda_on_cpu_arena() {
    if (!arena) {
        arena = static_cast<char*>(reserve(ARENA_BYTES));
        cells = static_cast<Cell*>(reserve(ARENA_BYTES * sizeof(Cell)));
        written = static_cast<uint8_t*>(reserve(ARENA_BYTES));
    }
    return arena && cells && written ? arena : nullptr;
}

uint64_t cuda_on_cpu_arena_bytes() { return ARENA_BYTES; }
const uint8_t* cuda_on_cpu_written() { return written; }

void cuda_on_cpu_set_regions(const Region* table, unsigned count, uint64_t arena_used) {
    regions = table;
    region_count = count;
    last_region = 0;
    std::memset(page_region, 0, sizeof page_region[0] * ((arena_used >> PAGE_BITS) + 1));
    for (unsigned i = 0; i < count; i++) {
        const Region& r = table[i];
        if (r.end > r.begin) std::memset(written + r.shadow, 0, r.end - r.begin);
        const uint64_t first = r.begin - uint64_t(arena), last = r.end - uint64_t(arena);
        if (last > ARENA_BYTES || first >= last) continue;
        for (uint64_t page = first >> PAGE_BITS; page <= (last - 1) >> PAGE_BITS; page++)
            page_region[page] = uint16_t(i + 1);
    }
}

void cuda_on_cpu_atomic(void* pointer, unsigned size, void* pc) {
    memory_access(uint64_t(pointer), size, ATOMIC, true, uint64_t(pc));
}

void __tsan_init() {}

#define PC uint64_t(__builtin_return_address(0))
#define ACCESS(n)                                                                                       \
    void __tsan_read##n(void* p) { memory_access(uint64_t(p), n, READ, true, PC); }                      \
    void __tsan_write##n(void* p) { memory_access(uint64_t(p), n, WRITE, true, PC); }                    \
    void __tsan_unaligned_read##n(void* p) { memory_access(uint64_t(p), n, READ, false, PC); }           \
    void __tsan_unaligned_write##n(void* p) { memory_access(uint64_t(p), n, WRITE, false, PC); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)

// Structs of other sizes, and loads whose alignment the source does not claim (memcpy).
void __tsan_read_range(void* p, size_t n) { memory_access(uint64_t(p), unsigned(n), READ, false, PC); }
void __tsan_write_range(void* p, size_t n) { memory_access(uint64_t(p), unsigned(n), WRITE, false, PC); }
}
