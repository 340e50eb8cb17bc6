// One stack per CUDA thread, and the switch between two of them.
#pragma once

#if defined(__x86_64__) && !defined(CUDA_ON_CPU_UCONTEXT)
struct Context {
    void* stack_pointer;
};
#else
#include <ucontext.h>
struct Context {
    ucontext_t state;
};
#endif

// Saves the running context in `from` and goes on where `to` was saved.
extern "C" void context_switch(Context* from, Context* to);
// The next switch to `context` calls `entry`, which never returns, on the stack [low, top).
void context_start(Context& context, char* low, char* top, void (*entry)());
