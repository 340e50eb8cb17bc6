// The core of decode's matmuls: a persistent block streams its share of a matrix's rows through shared memory and
// multiplies it, in integers (dp4a), with one token's q8 activations, which lie in shared memory as well.
//
// The unit of work is a pair of rows: neighbours, a RoPE pair, or gate and up. A warp takes SPAN superblocks of both
// rows at once, an *item*, and has STAGES items under way in a ring of its own. The items of a block's units, one after
// the other, are shared evenly by its warps, so a unit may be begun by one warp and ended by another. Weights depend on
// no kernel, so the ring is filled before the wait for the previous kernel.
#include "stream_types.cuh"

// Some rows of one type. Unit u is row first(u) and the one delta bytes behind it: with half = 1 and step = 2
// neighbours, with half a head and step a head RoPE pairs, with half = step = 1 and delta to another matrix gate and up.
struct Rows {
    const u8* w;
    size_t delta;  // bytes
    int type, half, step;  // type: 4 or 6
    int from, to;  // units of this block
    BODY int first(int unit) const { return unit / half * step + unit % half; }
};

struct Stream {
    Plane plane;
    Shared ring;  // this warp's
    float (*part)[2][2];  // per warp: sums of the unit at its beginning and at its end, when it has only a part of it
    int superblocks, warp, lane;

    template <class T> BODY int of_unit() const { return (superblocks + T::SPAN - 1) / T::SPAN; }  // items
    template <class T> BODY int item(const Rows& rows, int of_warp) const {
        return (rows.to - rows.from) * of_unit<T>() * of_warp / STREAM_WARPS;
    }

    // The copying side: unit by unit, item by item, STAGES ahead of the products.
    template <class T> struct Ahead {
        typename T::Source source;
        int unit, left_of_unit, left;
    };

    template <class T> BODY void enter(Ahead<T>& ahead, const Rows& rows, int item) const {
        const u8* row = rows.w + T::row_bytes(superblocks) * rows.first(ahead.unit);
        ahead.source.begin(row, rows.delta, item, superblocks, lane);
        ahead.left_of_unit = of_unit<T>() - item;
    }

    template <class T> BODY Ahead<T> ahead_at(const Rows& rows, int at, int end) const {
        Ahead<T> ahead;
        const u32 per = of_unit<T>(), unit = static_cast<u32>(at) / per;
        ahead.unit = rows.from + unit, ahead.left = end - at;
        enter(ahead, rows, at - unit * per);
        return ahead;
    }

    template <class T> BODY void copy(Ahead<T>& ahead, const Rows& rows, Shared stage) const {
        if (ahead.left > 0) {
            ahead.source.copy(stage, superblocks, lane);
            ahead.left--;
            ahead.source.advance();
            if (--ahead.left_of_unit == 0) ahead.unit++, enter(ahead, rows, 0);
        }
        close_group();
    }

    template <class T> BODY void prime(const Rows& rows) const {
        Ahead<T> ahead = ahead_at<T>(rows, item<T>(rows, warp), item<T>(rows, warp + 1));
#pragma unroll
        for (int i = 0; i < T::STAGES; i++) copy(ahead, rows, ring + i * T::STAGE);
    }

    // After prime, once the plane is there. `finish(unit, a, b)`: a whole warp is given a unit's two products. The
    // block's threads meet in here.
    template <class T, class Finish> BODY void run(const Rows& rows, const Finish& finish) const {
        const int begin = item<T>(rows, warp), end = item<T>(rows, warp + 1), per = of_unit<T>();
        constexpr int step = T::SPAN / QUAD * Plane::BYTES;
        const Shared first = shared_address(plane.quads), last = ring + T::STAGES * T::STAGE;
        Ahead<T> ahead = ahead_at<T>(rows, begin + T::STAGES, end);
        int unit = static_cast<u32>(begin) / static_cast<u32>(per), at = begin - unit * per;
        unit += rows.from;
        Shared stage = ring, x = first + at * step;
        bool whole = at == 0;
        float2 sum = {0.0f, 0.0f};
        for (int left = end - begin; left > 0;) {
            wait_for_groups<T::STAGES - 1>();
            __syncwarp();
            T::dot(sum, stage, x, lane, superblocks - at * T::SPAN);
            __syncwarp();
            copy(ahead, rows, stage);
            stage += T::STAGE;
            if (stage == last) stage = ring;
            left--, at++, x += step;
            if (at < per && left > 0) continue;
            hand_over(sum, whole, at == per, unit, finish);
            if (at < per) break;
            unit++, at = 0, x = first, whole = true, sum = {0.0f, 0.0f};
        }
        __syncthreads();
        if (end > begin && whole && at > 0 && at < per) gather<T>(rows, unit, end, finish);
        __syncthreads();
    }

    // The end of a unit, or of the warp's share of it.
    template <class Finish>
    BODY void hand_over(float2 sum, bool begun, bool ended, int unit, const Finish& finish) const {
        sum = make_float2(warp_sum(sum.x), warp_sum(sum.y));
        if (begun && ended)
            finish(unit, sum.x, sum.y);
        else if (lane == 0)
            part[warp][begun][0] = sum.x, part[warp][begun][1] = sum.y;  // [0]: begun by an earlier warp
    }

    // The unit that this warp began and later ones went on with: their sums in warp order.
    template <class T, class Finish>
    BODY void gather(const Rows& rows, int unit, int end, const Finish& finish) const {
        const int last = (unit + 1 - rows.from) * of_unit<T>();
        float a = part[warp][1][0], b = part[warp][1][1];
        for (int w = warp + 1; end < last; w++) {
            const int next = item<T>(rows, w + 1);
            if (next > end) a += part[w][0][0], b += part[w][0][1];
            end = next;
        }
        finish(unit, a, b);
    }

    // Type by number, so that q, k and v may differ.
    BODY void prime(const Rows& rows) const { rows.type == 4 ? prime<StreamQ4K>(rows) : prime<StreamQ6K>(rows); }
    template <class Finish> BODY void run(const Rows& rows, const Finish& finish) const {
        rows.type == 4 ? run<StreamQ4K>(rows, finish) : run<StreamQ6K>(rows, finish);
    }
};
