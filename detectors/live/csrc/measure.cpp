// What the NaN watch measures on a CPU, in one pass over the memory: the lowest and the highest value, which also say
// whether all are finite, and the checksum of the bits. detectors/live/ops.py explains each figure.
//
// Values are compared as integers: the bits of a number, with all but the sign inverted where it is negative, sort as
// the number does, and infinities and NaN lie at both ends beyond all finite ones. So two integers, the smallest and
// the largest, hold everything, and no order of the pass changes them.
//
// The work is shared among the threads that torch computes with. Their pool is asked for by address (GOMP_parallel):
// a library that brought OpenMP along could bring a second pool, whose threads would wait beside torch's.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <mutex>

#define INNER inline __attribute__((always_inline))

namespace {

using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);

Parallel parallel = nullptr;  // torch's pool

constexpr int64_t row_words = int64_t{1} << 15;  // ops._ROW
constexpr int64_t chunk_rows = 4;                // what a thread takes at a time: 512 KiB of four-byte words
constexpr int64_t shared_from = 2;               // chunks: less is done sooner than another thread wakes up

// The same loop for several generations of processors, and the one for this one.
#if defined(__x86_64__)
const int generation = [] {
    __builtin_cpu_init();
    const bool widest = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vl");
    return widest ? 2 : __builtin_cpu_supports("avx2") ? 1 : 0;
}();
#define EACH(name, parameters, arguments, kind)                                                \
    template <kind>                                                                            \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))) void name##_512 parameters { \
        name##_inner arguments;                                                                \
    }                                                                                          \
    template <kind>                                                                            \
    __attribute__((target("avx2"))) void name##_256 parameters {                               \
        name##_inner arguments;                                                                \
    }                                                                                          \
    template <kind>                                                                            \
    void name##_of parameters {                                                                \
        if (generation == 2) return name##_512 arguments;                                      \
        if (generation == 1) return name##_256 arguments;                                      \
        name##_inner arguments;                                                                \
    }
#else
#define EACH(name, parameters, arguments, kind) \
    template <kind>                             \
    void name##_of parameters {                 \
        name##_inner arguments;                 \
    }
#endif

template <class Key>
struct Ends {
    Key low = std::numeric_limits<Key>::max();
    Key high = std::numeric_limits<Key>::min();

    INNER void take(Key low_, Key high_) {
        low = std::min(low, low_);
        high = std::max(high, high_);
    }
};

template <class Key>
INNER Key key_of(Key bits) {
    return bits ^ ((bits >> (8 * sizeof(Key) - 1)) & std::numeric_limits<Key>::max());
}

template <class Key>
INNER void ends_inner(const Key* bits, int64_t count, Ends<Key>& ends) {
    Key low = std::numeric_limits<Key>::max(), high = std::numeric_limits<Key>::min();
    for (int64_t i = 0; i < count; ++i) {
        const Key key = key_of(bits[i]);
        low = std::min(low, key);
        high = std::max(high, key);
    }
    ends.take(low, high);
}

EACH(ends, (const Key* bits, int64_t count, Ends<Key>& ends), (bits, count, ends), class Key)

// Several rows at once: their weights are read for all of them together.
template <class Word>
INNER void rows_inner(const Word* words, const int64_t* weights, int64_t count, uint64_t* sums) {
    uint64_t totals[chunk_rows] = {};
    for (int64_t i = 0; i < count; ++i) {
        const uint64_t weight = static_cast<uint64_t>(weights[i]);
        for (int64_t row = 0; row < chunk_rows; ++row) {
            totals[row] += static_cast<uint64_t>(static_cast<int64_t>(words[row * row_words + i])) * weight;
        }
    }
    std::copy(totals, totals + chunk_rows, sums);
}

template <class Word>
INNER void row_inner(const Word* words, const int64_t* weights, int64_t count, uint64_t* sums) {
    uint64_t total = 0;
    for (int64_t i = 0; i < count; ++i) {
        total += static_cast<uint64_t>(static_cast<int64_t>(words[i])) * static_cast<uint64_t>(weights[i]);
    }
    *sums = total;
}

EACH(row, (const Word* words, const int64_t* weights, int64_t count, uint64_t* sums), (words, weights, count, sums),
     class Word)
EACH(rows, (const Word* words, const int64_t* weights, int64_t count, uint64_t* sums), (words, weights, count, sums),
     class Word)

uint64_t mix(uint64_t number) {  // ops._mix
    uint64_t value = number + 0x9E3779B97F4A7C15u;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
    return value ^ (value >> 31);
}

uint64_t row_weight(uint64_t row) {  // ops._row_weight
    const uint64_t scattered = (row * 0x9E3779B1u) & ((uint64_t{1} << 17) - 1);
    return 1 + ((scattered + (mix(row ^ 0x5BD1E995u) & ~uint64_t{0x1FFFF})) << 16);
}

// Calls work(chunk) for each chunk, in this thread or in several. Each thread takes the next free chunk, so the number
// of threads that the pool really gives does not matter.
template <class Work>
void share(int64_t chunks, int threads, Work& work) {
    if (threads < 2 || chunks < shared_from || parallel == nullptr) {
        for (int64_t chunk = 0; chunk < chunks; ++chunk) work(chunk);
        return;
    }
    struct Shared {
        Work& work;
        int64_t chunks;
        std::atomic<int64_t> next{0};
    } shared{work, chunks};
    parallel(
        [](void* data) {
            auto& all = *static_cast<Shared*>(data);
            for (int64_t chunk; (chunk = all.next.fetch_add(1, std::memory_order_relaxed)) < all.chunks;) {
                all.work(chunk);
            }
        },
        &shared, static_cast<unsigned>(std::min<int64_t>(threads, chunks)), 0);
}

// value[0], value[1]: the lowest and the highest of count values, if all are finite; returns 1 then, else 0.
template <class Key, class Value>
int extremes(const Key* bits, int64_t count, int threads, Key infinity, Value value, double* out) {
    Ends<Key> all;
    std::mutex lock;
    constexpr int64_t size = row_words * chunk_rows;
    auto work = [&](int64_t chunk) {
        Ends<Key> ends;
        ends_of(bits + chunk * size, std::min(size, count - chunk * size), ends);
        const std::lock_guard<std::mutex> held(lock);
        all.take(ends.low, ends.high);
    };
    share((count + size - 1) / size, threads, work);
    if (all.high >= infinity || all.low <= key_of(static_cast<Key>(infinity | std::numeric_limits<Key>::min()))) {
        return 0;
    }
    out[0] = value(key_of(all.low)) + 0.0;  // -0 as 0
    out[1] = value(key_of(all.high)) + 0.0;
    return 1;
}

double of_float(int32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

double of_double(int64_t bits) {
    double value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

double of_bfloat16(int16_t bits) {
    return of_float(static_cast<int32_t>(static_cast<uint32_t>(static_cast<uint16_t>(bits)) << 16));
}

double of_half(int16_t bits) {  // finite
    const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
    const double size = exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24);
    return bits < 0 ? -size : size;
}

template <class Word>
uint64_t sum(const Word* words, int64_t count, int64_t start, const int64_t* weights, int threads) {
    // A chunk is `chunk_rows` rows of the whole parameter; the first and the last chunk may be partial.
    const int64_t first_row = start / row_words, end = start + count;
    const int64_t rows = count ? (end - 1) / row_words - first_row + 1 : 0;
    std::atomic<uint64_t> total{0};
    auto work = [&](int64_t chunk) {
        uint64_t sums[chunk_rows], part = 0;
        const int64_t row = first_row + chunk * chunk_rows, last = std::min(first_row + rows, row + chunk_rows);
        if (last - row == chunk_rows && row * row_words >= start && last * row_words <= end) {
            rows_of(words + (row * row_words - start), weights, row_words, sums);
            for (int64_t i = 0; i < chunk_rows; ++i) part += sums[i] * row_weight(static_cast<uint64_t>(row + i));
        } else {
            for (int64_t i = row; i < last; ++i) {
                const int64_t lo = std::max(start, i * row_words), hi = std::min(end, (i + 1) * row_words);
                row_of(words + (lo - start), weights + (lo - i * row_words), hi - lo, sums);
                part += sums[0] * row_weight(static_cast<uint64_t>(i));
            }
        }
        total.fetch_add(part, std::memory_order_relaxed);
    };
    share((rows + chunk_rows - 1) / chunk_rows, threads, work);
    return total.load();
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void watch_threads(void* gomp_parallel) { parallel = reinterpret_cast<Parallel>(gomp_parallel); }

// kind: 0 float32, 1 float64, 2 bfloat16, 3 float16
EXPORT int watch_extremes(const void* values, int64_t count, int kind, int threads, double* out) {
    switch (kind) {
        case 0:
            return extremes(static_cast<const int32_t*>(values), count, threads, 0x7F800000, of_float, out);
        case 1:
            return extremes(static_cast<const int64_t*>(values), count, threads, int64_t{0x7FF0000000000000},
                            of_double, out);
        case 2:
            return extremes(static_cast<const int16_t*>(values), count, threads, int16_t{0x7F80}, of_bfloat16, out);
        default:
            return extremes(static_cast<const int16_t*>(values), count, threads, int16_t{0x7C00}, of_half, out);
    }
}

// width: bytes of a word; 1 is unsigned, the others are signed. start: the first word's place in the whole parameter.
EXPORT uint64_t watch_sum(const void* words, int64_t count, int width, int64_t start, const int64_t* weights,
                          int threads) {
    switch (width) {
        case 1:
            return sum(static_cast<const uint8_t*>(words), count, start, weights, threads);
        case 2:
            return sum(static_cast<const int16_t*>(words), count, start, weights, threads);
        default:
            return sum(static_cast<const int32_t*>(words), count, start, weights, threads);
    }
}
