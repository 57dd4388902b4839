// Where chunks and segments lie, against loops over the sequences; and offsets as they are read.
#include <algorithm>
#include <utility>

#include "device_kit.cuh"
#include "engines/cuda/device/chunks.cuh"

namespace deltaworks::cuda::device_test {
namespace {

template <class Int>
__global__ void offset_kernel(View x, int count, std::int64_t* offsets) {
  if (static_cast<int>(threadIdx.x) < count) offsets[threadIdx.x] = read_offset(x, threadIdx.x);
}

template <class Int>
void test_offsets(const std::string& name, DType dtype, int stride) {
  std::vector<Int> x(32 * stride);
  for (Int& each : x) {
    each = static_cast<Int>(static_cast<std::uint64_t>(random_bits()) << 32 | random_bits());
  }
  const OnCard<Int> card_x(x);
  const OnCard<std::int64_t> offsets(32);
  View view;
  view.data = card_x.get();
  view.dtype = dtype;
  view.stride[0] = stride;
  offset_kernel<Int><<<1, 32>>>(view, 32, offsets.get());
  finish(name);
  const std::vector<std::int64_t> got = offsets.fetch();
  int wrong = 0;
  for (int i = 0; i < 32; ++i) wrong += got[i] != x[i * stride];
  report(name, wrong, 0);
}

// What lies where, one sequence after another.
struct Expected {
  std::vector<std::int64_t> begin = {0}, chunks = {0}, further = {0};
  std::vector<int> sequences;  // of each chunk
  std::vector<Chunk> in_chunks;
  std::vector<Segment> first;  // of each sequence, an empty one's too
  std::vector<Segment> in_further;
};

Expected walk(const std::vector<std::int64_t>& lengths, std::int64_t segment_chunks) {
  Expected e;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const int n = static_cast<int>(i);
    const std::int64_t start = e.begin.back(), end = start + lengths[i];
    const auto before = static_cast<std::int64_t>(e.in_chunks.size());
    e.first.push_back({n, 0, true, start, end, before});
    std::vector<Segment> segments;  // what the sequence has of them, and of chunks
    std::int64_t held = 0;          // chunks in the last one
    for (std::int64_t token = start; token < end; token += kChunk) {
      const std::int64_t next = std::min(token + kChunk, end);
      if (segments.empty() || held == segment_chunks) {
        if (!segments.empty()) segments.back().last = false;
        segments.push_back({n, static_cast<int>(segments.size()), true, token, next,
                            static_cast<std::int64_t>(e.in_chunks.size())});
        held = 0;
      }
      segments.back().end = next;
      ++held;
      e.sequences.push_back(n);
      e.in_chunks.push_back({token, static_cast<int>(next - token)});
    }
    if (!segments.empty()) {
      e.first.back() = segments.front();
      e.in_further.insert(e.in_further.end(), segments.begin() + 1, segments.end());
    }
    e.begin.push_back(end);
    e.chunks.push_back(static_cast<std::int64_t>(e.in_chunks.size()));
    e.further.push_back(static_cast<std::int64_t>(e.in_further.size()));
  }
  return e;
}

constexpr int kPast = 100;  // chunks past the last that are asked for

__global__ void chunk_kernel(Params p, int* sequences, Chunk* chunks) {
  const int i = thread_number();
  if (i >= p.chunks[p.N] + kPast) return;
  chunks[i] = find_chunk(p, i);
  if (i < p.chunks[p.N]) sequences[i] = find_sequence(p.chunks, p.N, i);
}
__global__ void segment_kernel(Params p, Segment* first, Segment* further) {
  const int i = thread_number();
  if (i < p.N) first[i] = segment_of(p, i, 0);
  if (i < p.further[p.N]) further[i] = find_further(p, i);
}

int wrong_segments(const std::vector<Segment>& got, const std::vector<Segment>& expected) {
  int wrong = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const Segment &a = got[i], &b = expected[i];
    wrong += !(a.n == b.n && a.number == b.number && a.last == b.last && a.begin == b.begin &&
               a.end == b.end && a.chunk == b.chunk);
  }
  return wrong;
}

// The offsets on the card.
struct Batch {
  explicit Batch(const Expected& e, std::int64_t segment_chunks)
      : begin(e.begin), chunks(e.chunks), further(e.further) {
    p.N = static_cast<int>(e.first.size());
    p.T = e.begin.back();
    p.segment_chunks = segment_chunks;
    p.begin = begin.get();
    p.chunks = chunks.get();
    p.further = further.get();
  }
  OnCard<std::int64_t> begin, chunks, further;
  Params p;
};

void test_chunks_of(const std::string& name, const std::vector<std::int64_t>& lengths) {
  const Expected e = walk(lengths, 1);
  const Batch batch(e, 1);
  const std::size_t asked = e.in_chunks.size() + kPast;
  const OnCard<int> sequences(asked);
  const OnCard<Chunk> found(asked);
  chunk_kernel<<<blocks_for(asked), 256>>>(batch.p, sequences.get(), found.get());
  finish(name);
  const std::vector<int> sequence = sequences.fetch();
  const std::vector<Chunk> chunk = found.fetch();
  int wrong = 0;
  for (std::size_t i = 0; i < asked; ++i) {
    if (i < e.in_chunks.size()) {
      wrong += sequence[i] != e.sequences[i] || chunk[i].begin != e.in_chunks[i].begin ||
               chunk[i].rows != e.in_chunks[i].rows;
    } else {
      wrong += chunk[i].rows != 0;
    }
  }
  report("chunks, " + name, wrong, 0);
}

void test_segments_of(const std::string& name, const std::vector<std::int64_t>& lengths,
                      std::int64_t segment_chunks) {
  const Expected e = walk(lengths, segment_chunks);
  const Batch batch(e, segment_chunks);
  const std::size_t count = std::max(e.first.size(), e.in_further.size());
  const OnCard<Segment> first(count), further(count);
  segment_kernel<<<blocks_for(count), 256>>>(batch.p, first.get(), further.get());
  finish(name);
  report("segments of " + std::to_string(segment_chunks) + ", " + name,
         wrong_segments(first.fetch(), e.first) + wrong_segments(further.fetch(), e.in_further), 0);
}

}  // namespace

void test_chunks() {
  test_offsets<std::int32_t>("offsets, int32", DType::kInt32, 1);
  test_offsets<std::int32_t>("offsets, int32, apart", DType::kInt32, 3);
  test_offsets<std::int64_t>("offsets, int64", DType::kInt64, 1);
  test_offsets<std::int64_t>("offsets, int64, apart", DType::kInt64, 2);
  std::vector<std::int64_t> many(700);
  for (std::int64_t& each : many) {
    each = random_bits() % 3 == 0 ? 0 : static_cast<std::int64_t>(random_bits() % 1500);
  }
  // Empty ones at the start, in the middle and at the end; lengths about multiples of a chunk and
  // of a segment.
  const std::vector<std::int64_t> ragged = {0,   0,   1,   64, 0,   65,   127, 128, 129,
                                            0,   0,   0,   63, 512, 0,    513, 575, 1024,
                                            577, 640, 511, 0,  1,   1000, 0,   0};
  const std::pair<const char*, std::vector<std::int64_t>> batches[] = {
      {"ragged", ragged},
      {"700 sequences", many},
      {"one sequence", {64 * 17 + 5}},
      {"one token", {1}},
      {"all empty", {0, 0, 0}}};
  for (const auto& [name, lengths] : batches) {
    test_chunks_of(name, lengths);
    for (std::int64_t segment_chunks : {1, 2, 8, 1 << 20}) {
      test_segments_of(name, lengths, segment_chunks);
    }
  }
}

}  // namespace deltaworks::cuda::device_test
