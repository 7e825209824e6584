// Recurrent layers and sampling.
//
// A selective scan goes through a sequence in chunks; within a chunk, prefixes are combined by doubling distances, so
// that a chunk of 64 tokens takes six steps of whole arrays instead of a chain of 64.
#pragma once

#include "attention.h"

namespace mlxcel {

constexpr int SCAN_CHUNK = 64;

// Tokens of one slot, one after the other: [first, first + tokens).
struct Run {
  int first, tokens;
};

struct Runs {
  // All runs have one token.
  bool decode;
  std::vector<Run> all;
};

// x: positions, slot_ids.
inline const Runs& runs_of(Builder& b, const array& positions, const array& slots, Layout layout) {
  auto& known = b.memo[{positions.id(), slots.id()}];
  if (!known) {
    Runs made;
    int n = slots.shape(0);
    if (layout == Layout::one) made.all.push_back({0, n});
    if (layout == Layout::ragged) {
      auto ids = b.numbers(slots);
      for (int t = 0; t < n; t++) {
        if (t > 0 && ids[t] == ids[t - 1] && ids[t] >= 0) made.all.back().tokens++;
        else made.all.push_back({t, 1});
      }
    }
    made.decode = layout == Layout::decode || std::all_of(made.all.begin(), made.all.end(), [](const Run& r) {
                    return r.tokens == 1;
                  });
    known = std::make_shared<Runs>(std::move(made));
    b.kept.push_back(positions);
    b.kept.push_back(slots);
  }
  return *static_cast<Runs*>(known.get());
}

// The states of slots [n], zero where a sequence begins.
inline array load_slots(const Builder& b, const array& state, const array& slots, const array& positions) {
  auto rows = b.take(b.f32(state), b.clamped(slots, state.shape(0)), 0);
  auto begins = b.along_rows(mx::equal(positions, b.like(0, positions), b.s), rows.ndim());
  return b.where(begins, array(0.0f), rows);
}

// Where the last token of a run that belongs to a sequence is; padding follows it.
inline array last_of(const Builder& b, const array& slots) {
  auto valid = b.cast(mx::greater_equal(slots, b.like(0, slots), b.s), mx::int32);
  return b.sub(mx::sum(valid, true, b.s), array(1));
}

// h = exp(dt·a)·h + dt·b·x, inclusive prefixes of a chunk [t, c, n].
inline array scan_chunk(const Builder& b, array decay, array input, const array& before) {
  int n = input.shape(0);
  for (int off = 1; off < n; off *= 2) {
    auto carried = b.mul(b.rows(decay, off, n), b.rows(input, 0, n - off));
    auto next = b.add(b.rows(input, off, n), carried);
    input = mx::concatenate({b.rows(input, 0, off), next}, 0, b.s);
    auto product = b.mul(b.rows(decay, off, n), b.rows(decay, 0, n - off));
    decay = mx::concatenate({b.rows(decay, 0, off), product}, 0, b.s);
  }
  return b.add(input, b.mul(decay, before));
}

// The hidden states of all tokens of a run [t, c, n].
inline array scan_run(const Builder& b, const array& decay, const array& input, const array& before) {
  Arrays chunks;
  auto h = before;
  for (int at = 0, n = input.shape(0); at < n; at += SCAN_CHUNK) {
    int end = std::min(n, at + SCAN_CHUNK);
    chunks.push_back(scan_chunk(b, b.rows(decay, at, end), b.rows(input, at, end), h));
    h = b.rows(chunks.back(), end - at - 1, end - at);
  }
  return chunks.size() == 1 ? chunks[0] : mx::concatenate(chunks, 0, b.s);
}

// (x, dt, a, b, c, d, state, positions, slot_ids) to (y, state).
inline Arrays selective_scan(Builder& b, const Arrays& x, Layout layout) {
  auto s = b.s;
  auto in = b.f32(x[0]), dt = mx::expand_dims(b.f32(x[1]), 2, s);
  auto& positions = x[7];
  auto& slots = x[8];
  auto decay = mx::exp(b.mul(dt, b.f32(x[2])), s); // [t, c, n]
  auto input = b.mul(b.mul(dt, mx::expand_dims(b.f32(x[3]), 1, s)), mx::expand_dims(in, 2, s));
  if (layout == Layout::one) {
    auto valid = b.along_rows(mx::greater_equal(slots, b.like(0, slots), s), 3);
    decay = b.where(valid, decay, array(1.0f));
    input = b.where(valid, input, array(0.0f));
  }
  auto& runs = runs_of(b, positions, slots, layout);
  auto hidden = input;
  auto state = x[6];
  if (runs.decode) {
    hidden = b.add(b.mul(decay, load_slots(b, state, slots, positions)), input);
    state = b.put_rows(state, slots, b.cast(hidden, state.dtype()), Inside::unknown);
  } else {
    Arrays parts;
    for (auto [first, n] : runs.all) {
      auto slot = b.rows(slots, first, first + 1);
      auto before = load_slots(b, state, slot, b.rows(positions, first, first + 1));
      parts.push_back(scan_run(b, b.rows(decay, first, first + n), b.rows(input, first, first + n), before));
      auto last = b.rows(parts.back(), n - 1, n);
      state = b.put_rows(state, slot, b.cast(last, state.dtype()), Inside::unknown);
    }
    hidden = parts.size() == 1 ? parts[0] : mx::concatenate(parts, 0, s);
  }
  auto y = mx::sum(b.mul(hidden, mx::expand_dims(b.f32(x[4]), 1, s)), 2, false, s);
  y = b.add(y, b.mul(b.f32(x[5]), in));
  return {b.cast(y, x[0].dtype()), state};
}

// A window over what came before and the tokens of the run: past [k-1, c], in [t, c], w [c, k].
inline array conv_run(const Builder& b, const array& all, const array& w, int tokens) {
  int k = w.shape(1);
  std::optional<array> y;
  for (int j = 0; j < k; j++) {
    auto term = b.mul(b.rows(all, j, j + tokens), b.reshape(b.cut(w, 1, j, j + 1), {w.shape(0)}));
    y = y ? b.add(*y, term) : term;
  }
  return *y;
}

// (x, w, bias, state, positions, slot_ids) to (y, state); the state holds the last k-1 inputs, oldest first.
inline Arrays causal_conv(Builder& b, const Arrays& x, Layout layout) {
  auto s = b.s;
  auto in = b.f32(x[0]), w = b.f32(x[1]);
  auto state = x[3];
  int k = w.shape(1), c = w.shape(0);
  auto& runs = runs_of(b, x[4], x[5], layout);
  std::optional<array> y;
  if (runs.decode) {
    auto past = load_slots(b, state, x[5], x[4]); // [t, c, k-1]
    auto window = mx::concatenate({past, mx::expand_dims(in, 2, s)}, 2, s);
    y = mx::sum(b.mul(window, w), 2, false, s);
    state = b.put_rows(state, x[5], b.cast(b.cut(window, 2, 1, k), state.dtype()), Inside::unknown);
  } else {
    Arrays parts;
    for (auto [first, n] : runs.all) {
      auto slot = b.rows(x[5], first, first + 1);
      auto past = load_slots(b, state, slot, b.rows(x[4], first, first + 1));
      auto all = mx::concatenate(
          {b.transpose(b.reshape(past, {c, k - 1}), {1, 0}), b.rows(in, first, first + n)}, 0, s);
      parts.push_back(conv_run(b, all, w, n));
      auto end = b.add(last_of(b, b.rows(x[5], first, first + n)), array(1));
      auto kept = b.take(all, b.add(end, mx::arange(0, k - 1, 1, s)), 0); // [k-1, c]
      auto row = mx::expand_dims(b.transpose(kept, {1, 0}), 0, s);
      state = b.put_rows(state, slot, b.cast(row, state.dtype()), Inside::unknown);
    }
    y = parts.size() == 1 ? parts[0] : mx::concatenate(parts, 0, s);
  }
  return {b.cast(b.add(*y, b.f32(x[2])), x[0].dtype()), state};
}

// ---- sampling, as the graph's definition of it goes ----

inline array mixed(const Builder& b, const array& h) {
  auto s = b.s;
  auto fold = [&](const array& v, int n) { return mx::bitwise_xor(v, mx::right_shift(v, array(uint32_t(n)), s), s); };
  auto once = b.mul(fold(h, 16), array(uint32_t(0x7feb352d)));
  auto twice = b.mul(fold(once, 15), array(uint32_t(0x846ca68b)));
  return fold(twice, 16);
}

// (logits, temperature, top_k, top_p, min_p, seed, step) to i32 [rows].
inline array sample(const Builder& b, const Arrays& x, bool greedy) {
  auto s = b.s;
  auto logits = b.f32(x[0]);
  auto likeliest = b.cast(mx::argmax(logits, 1, false, s), mx::int32);
  if (greedy) return likeliest;
  auto column = [&](const array& a) { return mx::expand_dims(a, 1, s); };
  auto zero = array(0.0f);
  auto sorted = sort(b, logits, 1, true);
  auto is_greedy = mx::less_equal(x[1], zero, s);
  auto scaled = mx::divide(sorted[0], column(b.where(is_greedy, array(1.0f), x[1])), s);
  auto weights = mx::exp(b.sub(scaled, b.cut(scaled, 1, 0, 1)), s);
  auto rank = mx::expand_dims(mx::arange(0, logits.shape(1), 1, s), 0, s);
  auto limit = b.where(mx::less_equal(x[2], array(0), s), array(INT32_MAX), x[2]);
  weights = b.where(mx::less(rank, column(limit), s), weights, zero);
  auto running = mx::cumsum(weights, 1, false, true, std::nullopt, s);
  auto before = b.sub(running, weights), total = mx::sum(weights, 1, true, s);
  auto first = mx::equal(rank, array(0), s);
  auto keep = mx::logical_or(first, mx::less(before, b.mul(column(x[3]), total), s), s);
  weights = b.where(keep, weights, zero);
  keep = mx::logical_or(first, mx::greater_equal(weights, column(x[4]), s), s);
  weights = b.where(keep, weights, zero);
  auto seeded = mixed(b, b.add(x[5], array(uint32_t(0x9e3779b9))));
  auto bits = mixed(b, mx::bitwise_xor(seeded, x[6], s));
  auto uniform = b.times(b.f32(mx::right_shift(bits, array(uint32_t(8)), s)), 1.0 / (1 << 24));
  running = mx::cumsum(weights, 1, false, true, std::nullopt, s);
  auto target = b.mul(column(uniform), mx::sum(weights, 1, true, s));
  auto some = mx::greater(weights, zero, s);
  auto passed = mx::logical_and(mx::less_equal(running, target, s), some, s);
  auto count = [&](const array& a) { return mx::sum(b.cast(a, mx::int32), 1, true, s); };
  auto index = mx::minimum(count(passed), b.sub(count(some), array(1)), s);
  auto drawn = b.reshape(mx::take_along_axis(sorted[1], index, 1, s), {logits.shape(0)});
  return b.where(is_greedy, likeliest, drawn);
}

} // namespace mlxcel
