// The core of decode's matmuls: a persistent block streams its share of a matrix's rows through shared memory and
// multiplies it, in integers (dp4a), with one token's q8 activations, which lie in shared memory as well.
//
// The unit of work is a pair of rows: neighbours, a RoPE pair, or gate and up. SPAN superblocks of both rows are an
// *item*, and a block's items, unit by unit, go to its warps in turn, so that the block reads on at one place: where
// every warp has rows of its own, 2,112 places in all, the memory gives 3% less (analysis/log.md). A warp has STAGES
// items under way in a ring of its own. Weights depend on no kernel, so the ring is filled before the wait for the
// previous kernel. An item's sums go to shared memory, a unit's are added up in order: no geometry changes its bits.
#include "stream_types.cuh"

// Some rows of one type. Unit u is row first(u) and the one delta bytes behind it: neighbours are rows 2u and 2u + 1;
// of gate and up, delta to another matrix, both are row u; RoPE pairs are half a head apart.
struct Rows {
    static constexpr int WHOLE = 1 << 30;  // half of what is no head
    const u8* w;
    size_t delta;  // bytes
    int type, step, half;  // type: 4 or 6
    int from, to;  // units of this block
    BODY int first(int unit) const { return step * unit + unit / half * half; }
};

// Where a warp is among its items.
struct Walk {
    int per;  // items of a unit
    int units, more;  // to the warp's next item: so many units, and items
    int row, within, at;  // the unit's first row, its place among `half`, and the item's place in the unit
    int left;  // items
    BODY void go_on(const Rows& rows) {
        at += more;
        const int over = at >= per, by = units + over;
        if (over) at -= per;
        row += by * rows.step;
        for (within += by; within >= rows.half; within -= rows.half) row += rows.half;
        left--;
    }
};

// Its next item, of those in the ring or on the way there: where in the ring, which, and its place in the unit.
struct Place {
    Shared stage;
    int item, at;
};

// The sums of a in the lower half of the warp's lanes, of b in the upper.
BODY float warp_sums(float2 v, int lane) {
    const bool upper = lane >= WARP / 2;
    float sum = (upper ? v.y : v.x) + __shfl_xor_sync(ALL_LANES, upper ? v.x : v.y, WARP / 2);
#pragma unroll
    for (int k = WARP / 4; k > 0; k /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, k);
    return sum;
}

struct Stream {
    static constexpr int ROOM = 512;  // items whose sums are kept
    Plane plane;
    Shared ring;  // this warp's
    float* sums;  // two an item
    int superblocks, warp, lane;

    template <class T> BODY void copy(Walk& walk, const Rows& rows, Shared stage) const {
        if (walk.left > 0) {
            const u8* row = rows.w + T::row_bytes(superblocks) * static_cast<u32>(walk.row);
            T::copy(stage, row, rows.delta, walk.at, superblocks, lane);
            walk.go_on(rows);
        }
        close_group();
    }

    template <class T> BODY Walk prime(const Rows& rows) const {
        const u32 per = (superblocks + T::SPAN - 1) / T::SPAN, turn = STREAM_WARPS / per, skipped = warp / per;
        const int unit = rows.from + skipped, heads = unit / rows.half, items = (rows.to - rows.from) * per;
        Walk walk = {static_cast<int>(per), static_cast<int>(turn), static_cast<int>(STREAM_WARPS - turn * per),
                     rows.step * unit + heads * rows.half, unit - heads * rows.half,
                     static_cast<int>(warp - skipped * per), (items - warp + STREAM_WARPS - 1) / STREAM_WARPS};
#pragma unroll
        for (int i = 0; i < T::STAGES; i++) copy<T>(walk, rows, ring + i * T::STAGE);
        return walk;
    }

    // The warp's items up to `end`, and their sums, of which the first is that of item `kept`.
    template <class T> BODY void items(Place& place, Walk& walk, const Rows& rows, int end, int kept) const {
        constexpr int step = T::SPAN / QUAD * Plane::BYTES;
        const Shared first = shared_address(plane.quads), last = ring + T::STAGES * T::STAGE;
        for (; place.item < end; place.item += STREAM_WARPS) {
            wait_for_groups<T::STAGES - 1>();
            __syncwarp();
            const float2 product = T::dot(place.stage, first + place.at * step, lane, superblocks - place.at * T::SPAN);
            __syncwarp();
            copy<T>(walk, rows, place.stage);
            const float sum = warp_sums(product, lane);
            if (lane % (WARP / 2) == 0) sums[2 * (place.item - kept) + lane / (WARP / 2)] = sum;
            place.stage += T::STAGE;
            if (place.stage == last) place.stage = ring;
            place.at += walk.more;
            if (place.at >= walk.per) place.at -= walk.per;
        }
    }

    // After prime. `begin` makes the plane; `finish(unit, a, b, real)`: a thread is given a unit's two products. The
    // block's threads meet in here. Where launches overlap, the end of a round is rehearsed before `begin`, with
    // whatever lies in shared memory (the emulator would report the reads) and not `real`: code that runs for the first
    // time has to be fetched, and then the block waits for the previous kernel anyway.
    template <class Begin, class Finish>
    BODY void run(const Rows& rows, Walk walk, const Begin& begin, const Finish& finish) const {
        const int per = walk.per, units = rows.to - rows.from, room = static_cast<u32>(ROOM) / static_cast<u32>(per);
        // Set anew behind `begin`, though nothing has moved it: without that stream_norm_store spills on sm_90.
        const Place start = {ring, warp, static_cast<int>(static_cast<u32>(warp) % static_cast<u32>(per))};
        Place place = start;
        if (!OVERLAPS) {
            begin();
            __syncthreads();
        }
        for (int done = OVERLAPS ? -room : 0; done < units; done += room) {
            const bool real = done >= 0;
            const int first = max(done, 0), more = min(room, units - first), end = (first + more) * per;
            if (real)
                rows.type == 4 ? items<StreamQ4K>(place, walk, rows, end, first * per)
                               : items<StreamQ6K>(place, walk, rows, end, first * per);
            __syncthreads();
            for (int u = threadIdx.x; u < more; u += STREAM_THREADS) {
                const float2* part = reinterpret_cast<const float2*>(sums) + u * per;
                float2 sum = part[0];
                for (int i = 1; i < per; i++) sum.x += part[i].x, sum.y += part[i].y;
                finish(rows.from + first + u, sum.x, sum.y, real);
            }
            if (!real) begin(), place = start;
            __syncthreads();
        }
    }

    // Type by number, so that q, k and v may differ.
    BODY Walk prime(const Rows& rows) const { return rows.type == 4 ? prime<StreamQ4K>(rows) : prime<StreamQ6K>(rows); }
};
