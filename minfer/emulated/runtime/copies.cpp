// Asynchronous copies that a thread has put off until it waits for them, the latest they may happen.
#include "machine.h"

namespace {
constexpr unsigned UNDER_WAY = 256;

struct Copy {
    void* to;
    const void* from;
    unsigned size, group;
};

struct Queue {
    Copy copies[UNDER_WAY];
    unsigned first, end;  // of those under way, which lie at these numbers modulo UNDER_WAY
    unsigned closed;      // groups; a copy's group is the number of those closed before it
};

Queue queues[MAX_THREADS];
}  // namespace

void copies_start_block() {
    for (unsigned i = 0; i < machine.count; i++) queues[i].first = queues[i].end = queues[i].closed = 0;
}

extern "C" {
void cuda_on_cpu_copy_later(void* to, const void* from, unsigned size, const char* file, int line) {
    Queue& q = queues[self().id];
    if (q.end - q.first == UNDER_WAY)
        fail(SYNC, "%s:%d: more than %u asynchronous copies of a thread under way", base_name(file), line, UNDER_WAY);
    q.copies[q.end++ % UNDER_WAY] = {to, from, size, q.closed};
}

void cuda_on_cpu_close_group() { queues[self().id].closed++; }

// Size of the oldest copy of a closed group that is not among the latest `left` of them; 0 if there is none.
unsigned cuda_on_cpu_next_copy(unsigned left, void** to, const void** from) {
    Queue& q = queues[self().id];
    if (q.first == q.end) return 0;
    const Copy& oldest = q.copies[q.first % UNDER_WAY];
    if (oldest.group + left >= q.closed) return 0;
    q.first++;
    *to = oldest.to, *from = oldest.from;
    return oldest.size;
}
}
