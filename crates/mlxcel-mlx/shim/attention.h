// Norms, rotations and attention by MLX's fused kernels; attention over the paged cache.
//
// Keys and values are written into the cache where it lies and read back by the blocks of each sequence. Sequences with
// one new token are computed together, one row each; a prompt by itself. Where a sequence's blocks are neighbours, as
// they are until the pool is crowded, its keys are a view of the cache. On CUDA single tokens read the blocks where they lie.
#pragma once

#include "contract.h"
#include "paged.h"

namespace mlxcel {

inline array rms_norm(const Builder& b, const array& x, const std::optional<array>& w, double eps) {
  auto in = b.wide(x);
  auto weight = w ? std::optional(b.cast(*w, in.dtype())) : std::nullopt;
  return b.cast(mx::fast::rms_norm(in, weight, static_cast<float>(eps), b.s), x.dtype());
}

inline array layer_norm(
    const Builder& b, const array& x, const std::optional<array>& w, const std::optional<array>& bias, double eps) {
  auto in = b.wide(x);
  auto typed = [&](const std::optional<array>& a) { return a ? std::optional(b.cast(*a, in.dtype())) : std::nullopt; };
  return b.cast(mx::fast::layer_norm(in, typed(w), typed(bias), static_cast<float>(eps), b.s), x.dtype());
}

// Cosines and sines [tokens, 1, half] of what tokens are turned by, the same for all layers.
inline const Arrays& turns(Builder& b, const array& positions, const array& inv_freq) {
  auto& known = b.memo[{positions.id(), inv_freq.id()}];
  if (!known) {
    auto at = b.reshape(b.f32(positions), {positions.shape(0), 1, 1});
    auto angles = b.mul(at, b.reshape(b.f32(inv_freq), {1, 1, inv_freq.shape(0)}));
    known = std::make_shared<Arrays>(Arrays{mx::cos(angles, b.s), mx::sin(angles, b.s)});
    b.kept.insert(b.kept.end(), {positions, inv_freq});
  }
  return *static_cast<Arrays*>(known.get());
}

// The whole of x [tokens, heads, rotary] turned, number by number: neighbours by each other, or one half by the other.
inline array turned_plainly(Builder& b, const array& x, const array& positions, const array& inv_freq, bool pairs) {
  int tokens = x.shape(0), heads = x.shape(1), half = inv_freq.shape(0), axis = pairs ? 3 : 2;
  auto split = b.reshape(b.f32(x), pairs ? mx::Shape{tokens, heads, half, 2} : mx::Shape{tokens, heads, 2, half});
  auto one = b.cut(split, axis, 0, 1), other = b.cut(split, axis, 1, 2);
  auto& by = turns(b, positions, inv_freq);
  auto cos = mx::expand_dims(by[0], axis, b.s), sin = mx::expand_dims(by[1], axis, b.s);
  auto first = b.sub(b.mul(one, cos), b.mul(other, sin)), second = b.add(b.mul(one, sin), b.mul(other, cos));
  return b.cast(b.reshape(mx::concatenate({first, second}, axis, b.s), x.shape()), x.dtype());
}

// For CUDA, MLX's kernel makes blocks of up to 1024 / half by tokens and heads, of which CUDA takes 64 in that direction.
constexpr int NARROW = 16;

// x [tokens, heads, dim]: every token is a sequence of one that begins at its position, so that positions are free.
inline array
rope(Builder& b, const array& x, const array& positions, const array& inv_freq, bool pairs, double scale) {
  int rotary = 2 * inv_freq.shape(0), dim = x.shape(2);
  auto in = b.wide(x);
  auto with_rest = [&](const array& turned) {
    return rotary == dim ? turned : mx::concatenate({turned, b.cut(in, 2, rotary, dim)}, 2, b.s);
  };
  if (inv_freq.shape(0) < NARROW) {
    auto turned = turned_plainly(b, b.cut(in, 2, 0, rotary), positions, inv_freq, pairs);
    return b.cast(with_rest(scale == 1.0 ? turned : b.times(turned, scale)), x.dtype());
  }
  // All layers turn by the same few.
  auto& known = b.memo[{inv_freq.id()}];
  if (!known) {
    known = std::make_shared<array>(mx::reciprocal(b.f32(inv_freq), b.s));
    b.kept.push_back(inv_freq);
  }
  auto& periods = *static_cast<array*>(known.get());
  auto rows = b.reshape(in, {x.shape(0), x.shape(1), 1, dim});
  auto y = mx::fast::rope(rows, rotary, pairs, std::nullopt, 1.0f, b.cast(positions, mx::int32), periods, b.s);
  y = b.reshape(y, x.shape());
  if (scale != 1.0) y = with_rest(b.times(b.cut(y, 2, 0, rotary), scale));
  return b.cast(y, x.dtype());
}

// Scores, cap, mask and sums by themselves, in f32: what the fused kernels do not offer. Heads before tokens.
inline array capped_attention(
    const Builder& b, const array& q, const array& k, const array& v, const Scores& spec,
    const std::optional<array>& mask) {
  auto s = b.s;
  int kv = k.shape(1), group = q.shape(1) / kv;
  auto split = [&](const array& a) {
    return a.ndim() < 4 || a.shape(1) == 1 ? mx::expand_dims(a, a.ndim() < 4 ? 0 : 1, s)
                                           : b.reshape(a, {a.shape(0), kv, group, a.shape(2), a.shape(3)});
  };
  auto grouped = b.reshape(b.f32(q), {q.shape(0), kv, group, q.shape(2), q.shape(3)});
  auto keys = mx::expand_dims(b.f32(k), 2, s), values = mx::expand_dims(b.f32(v), 2, s);
  auto scores = b.times(matmul(b, grouped, mx::swapaxes(keys, -1, -2, s)), spec.scale);
  if (spec.softcap) scores = b.times(mx::tanh(b.times(scores, 1.0 / *spec.softcap), s), *spec.softcap);
  auto lowest = array(-1e30f);
  if (mask && mask->dtype() == mx::bool_) scores = b.where(split(*mask), scores, lowest);
  if (mask && mask->dtype() != mx::bool_) scores = b.add(scores, b.f32(split(*mask)));
  auto top = mx::max(scores, -1, true, s);
  std::optional<array> sink;
  if (spec.sinks) {
    sink = b.reshape(b.f32(*spec.sinks), {1, kv, group, 1, 1});
    top = mx::maximum(top, *sink, s);
  }
  auto weights = mx::exp(b.sub(scores, top), s);
  auto sum = mx::sum(weights, -1, true, s);
  if (sink) sum = b.add(sum, mx::exp(b.sub(*sink, top), s));
  auto out = matmul(b, mx::divide(weights, sum, s), values);
  return b.cast(b.reshape(out, {q.shape(0), q.shape(1), q.shape(2), v.shape(3)}), q.dtype());
}

// q, k, v are [batch, heads, tokens, dim]; the mask broadcasts to [batch, heads, queries, keys].
inline array attend(
    const Builder& b, const array& q, const array& k, const array& v, const Scores& spec,
    const std::optional<array>& mask, bool causal) {
  if (spec.softcap) return capped_attention(b, q, k, v, spec, mask);
  auto in = b.wide(q);
  auto typed = [&](const array& a) { return b.cast(a, in.dtype()); };
  auto sinks = spec.sinks ? std::optional(typed(*spec.sinks)) : std::nullopt;
  auto how = mask && mask->dtype() != mx::bool_ ? std::optional(typed(*mask)) : mask;
  auto out = mx::fast::scaled_dot_product_attention(
      in, typed(k), typed(v), static_cast<float>(spec.scale), causal ? "causal" : how ? "array" : "", how, sinks, false,
      b.s);
  return b.cast(out, q.dtype());
}

// Which keys a query at position `at` [queries, 1] sees, among keys numbered [1, keys].
inline array visible(const Builder& b, const array& at, const array& key, bool causal, int window) {
  std::optional<array> keep;
  if (causal) keep = mx::less_equal(key, at, b.s);
  if (window > 0) {
    auto near = mx::greater(key, b.sub(at, array(window)), b.s);
    keep = keep ? mx::logical_and(*keep, near, b.s) : near;
  }
  return *keep;
}

// Dense attention: (q [b, t, hq, d], k, v, mask?, sinks?); queries sit at the end of the keys.
inline array attention(const Builder& b, const Arrays& x, Words& a) {
  double scale = a.real();
  bool causal = a.flag();
  int window = a.number();
  auto softcap = a.maybe_real();
  bool masked = a.flag(), has_sinks = a.flag();
  Scores spec{scale, softcap, has_sinks ? std::optional(x[3 + masked]) : std::nullopt};
  auto heads_first = [&](const array& t) { return b.transpose(t, {0, 2, 1, 3}); };
  int queries = x[0].shape(1), keys = x[1].shape(1);
  auto at = mx::expand_dims(mx::arange(keys - queries, keys, 1, b.s), 1, b.s);
  auto key = mx::expand_dims(mx::arange(0, keys, 1, b.s), 0, b.s);
  std::optional<array> keep, mask;
  if (causal || window > 0) keep = visible(b, at, key, causal, window);
  if (masked && x[3].dtype() == mx::bool_) keep = keep ? mx::logical_and(*keep, x[3], b.s) : x[3];
  mask = keep;
  if (masked && x[3].dtype() != mx::bool_) {
    auto bias = b.wide(x[3]);
    double lowest = bias.dtype() == mx::float16 ? -65504 : -1e30;
    mask = keep ? b.where(*keep, bias, b.like(lowest, bias)) : bias;
  }
  // The kernels want the mask in four dimensions or two.
  if (mask && mask->ndim() == 3) mask = mx::expand_dims(*mask, 0, b.s);
  bool plain = causal && !masked && window <= 0 && !softcap;
  auto out = heads_first(attend(
      b, heads_first(x[0]), heads_first(x[1]), heads_first(x[2]), spec, plain ? std::nullopt : mask, plain));
  if (masked && keep && !has_sinks) {
    // A query that sees nothing gives zeros: [batch, heads, queries, 1] to [batch, queries, heads, 1].
    auto sees = mx::any(*keep, -1, true, b.s);
    while (sees.ndim() < 4) sees = mx::expand_dims(sees, 0, b.s);
    out = b.where(heads_first(sees), out, b.like(0, out));
  }
  return out;
}

// ---- the paged cache ----

// Sequences that are computed together: tokens of each, their blocks and positions.
struct Part {
  // Sequences, tokens of each, first and last page that any of them reads, keys up to the end.
  int batch, tokens, first_page, pages, keys;
  // Where its tokens are in the step; empty if they are all of them in order.
  std::optional<array> token_ids;
  array table;      // [batch, pages]
  array positions;  // [batch, tokens]
  array sequences;  // [batch, tokens]
  // Blocks in a row: the number of the first.
  std::optional<int> run;
  // All sequences see all keys that are read, or each query those up to its own.
  bool full, causal;
};

struct Ragged {
  std::vector<Part> parts;
  // Puts the tokens of all parts, end to end, back into the order of the step.
  std::optional<array> order;
  Inside slots;
  // The largest slot, and the first if they are in a row.
  int last_slot = 0;
  std::optional<int> slots_run;
  // Tokens of no sequence see nothing, and give zeros.
  std::optional<array> strays;
};

struct RaggedInputs {
  std::vector<int> positions, sequences, slots, table;
  int pages;
  // The first two where kernels find them, which saves them a copy.
  array positions_there, sequences_there;
};

// A part of the sequences `members`, whose tokens are given; all have the same number.
inline Part ragged_part(
    const Builder& b, const RaggedInputs& in, const std::vector<std::vector<int>>& members, int block, int window) {
  int tokens = static_cast<int>(members[0].size()), batch = static_cast<int>(members.size());
  int last = 0, first = INT32_MAX;
  bool equal = true, in_row = true;
  for (auto& m : members) {
    int from = in.positions[m[0]], to = in.positions[m.back()];
    equal = equal && to == in.positions[members[0].back()];
    in_row = in_row && to - from == tokens - 1;
    last = std::max(last, to);
    first = std::min(first, window > 0 ? std::max(0, from + 1 - window) : 0);
  }
  int first_page = first / block, pages = std::min(last / block + 1, in.pages) - first_page;
  std::vector<int> ids, table, positions, sequences;
  for (auto& m : members) {
    const int* row = in.table.data() + std::max(0, in.sequences[m[0]]) * in.pages;
    table.insert(table.end(), row + first_page, row + first_page + pages);
    for (int t : m) {
      ids.push_back(t);
      positions.push_back(in.positions[t]);
      sequences.push_back(in.sequences[t]);
    }
  }
  std::optional<int> run;
  if (batch == 1) {
    run = table[0];
    for (int p = 0; p < pages; p++)
      if (table[p] != table[0] + p) run = std::nullopt;
  }
  bool narrow = window > 0 && last + 1 - first_page * block > window;
  bool full = tokens == 1 && equal && !narrow;
  bool causal = tokens > 1 && batch == 1 && in_row && !narrow;
  bool everything = ids.size() == in.positions.size();
  for (size_t i = 0; i < ids.size(); i++) everything = everything && ids[i] == static_cast<int>(i);
  auto shaped = [&](const array& a) { return b.reshape(a, {batch, tokens}); };
  return Part{batch, tokens, first_page, pages, last + 1 - first_page * block,
              everything ? std::nullopt : std::optional(b.of(ids)), b.reshape(b.of(table), {batch, pages}),
              shaped(everything ? in.positions_there : b.of(positions)),
              shaped(everything ? in.sequences_there : b.of(sequences)), run, full, causal};
}

// Sequences with one token come together, the others one by one; tokens of no sequence are computed with the first.
inline Ragged ragged(const Builder& b, const RaggedInputs& in, int block, int window) {
  std::map<int, std::vector<int>> sequences;
  for (size_t t = 0; t < in.sequences.size(); t++) sequences[in.sequences[t]].push_back(static_cast<int>(t));
  std::vector<std::vector<int>> single;
  Ragged out;
  std::vector<int> laid;
  auto lay = [&](const std::vector<std::vector<int>>& members) {
    for (auto& m : members) laid.insert(laid.end(), m.begin(), m.end());
    out.parts.push_back(ragged_part(b, in, members, block, window));
  };
  for (auto& [id, tokens] : sequences) {
    if (tokens.size() == 1) single.push_back(tokens);
    if (tokens.size() > 1) lay({tokens});
  }
  if (!single.empty()) lay(single);
  std::vector<int> back(laid.size());
  bool ordered = true;
  for (size_t i = 0; i < laid.size(); i++) {
    back[laid[i]] = static_cast<int>(i);
    ordered = ordered && laid[i] == static_cast<int>(i);
  }
  if (!ordered) out.order = b.of(back);
  out.slots = Builder::inside_of(in.slots, INT32_MAX);
  bool in_row = in.slots[0] >= 0;
  for (size_t i = 0; i < in.slots.size(); i++) {
    in_row = in_row && in.slots[i] == int64_t(in.slots[0]) + int64_t(i);
    out.last_slot = std::max(out.last_slot, in.slots[i]);
  }
  if (in_row) out.slots_run = in.slots[0];
  std::vector<int> strays;
  for (int id : in.sequences) strays.push_back(id < 0);
  if (sequences.begin()->first < 0) out.strays = b.reshape(b.of(strays), {static_cast<int>(strays.size()), 1, 1});
  return out;
}

// What the engine promised of a traced step: a token for each sequence, or tokens of one sequence.
inline Ragged promised(
    const Builder& b, const array& positions, const array& sequences, const array& table, int block, Layout layout) {
  int tokens = positions.shape(0), pages = table.shape(1), keys = pages * block;
  bool decode = layout == Layout::decode;
  auto rows = decode ? b.take(table, b.clamped(sequences, table.shape(0)), 0) : b.rows(table, 0, 1);
  auto shaped = [&](const array& a) { return b.reshape(a, decode ? mx::Shape{tokens, 1} : mx::Shape{1, tokens}); };
  Ragged out;
  out.parts.push_back(Part{decode ? tokens : 1, decode ? 1 : tokens, 0, pages, keys, std::nullopt, rows,
                           shaped(positions), shaped(sequences), std::nullopt, false, false});
  // A step has at least one token that is kept.
  out.slots = Inside::some;
  return out;
}

// The sequences of the step, found out once for all layers with the same window.
inline const Ragged& sequences_of(Builder& b, const Arrays& x, int block, int window, Layout layout) {
  // x: positions, seq_ids, slot_mapping, block_table.
  std::vector<uintptr_t> key{x[0].id(), x[1].id(), x[2].id(), x[3].id(), uintptr_t(block), uintptr_t(window)};
  auto& known = b.memo[key];
  if (!known) {
    auto positions = b.cast(x[0], mx::int32), sequences = b.cast(x[1], mx::int32);
    Ragged made = layout != Layout::ragged
        ? promised(b, positions, sequences, x[3], block, layout)
        : ragged(b, {b.numbers(x[0]), b.numbers(x[1]), b.numbers(x[2]), b.numbers(x[3]), x[3].shape(1), positions, sequences},
                 block, window);
    known = std::make_shared<Ragged>(std::move(made));
    b.kept.insert(b.kept.end(), x.begin(), x.end());
  }
  return *static_cast<Ragged*>(known.get());
}

// The rows [batch, heads, keys] of a cache [blocks * block * heads, dim], the same for all layers of its shape.
inline const array& rows_of(Builder& b, const array& cache, const Part& p) {
  int block = cache.shape(1), heads = cache.shape(2);
  auto& known = b.memo[{p.table.id(), uintptr_t(block), uintptr_t(heads)}];
  if (!known) {
    auto counted = [&](int n, mx::Shape shape) { return b.reshape(mx::arange(0, n, 1, b.s), std::move(shape)); };
    auto first = b.mul(b.reshape(p.table, {p.batch, p.pages, 1}), array(block));
    auto tokens = b.reshape(b.add(first, counted(block, {1, 1, block})), {p.batch, 1, p.pages * block});
    if (p.keys < p.pages * block) tokens = b.cut(tokens, 2, 0, p.keys);
    auto rows = b.add(b.mul(tokens, array(heads)), counted(heads, {1, heads, 1}));
    known = std::make_shared<array>(rows);
  }
  return *static_cast<array*>(known.get());
}

// Keys of a part from a cache [blocks, block, heads, dim], as [batch, heads, keys, dim].
inline array keys_of(Builder& b, const array& cache, const Part& p) {
  int block = cache.shape(1), heads = cache.shape(2), dim = cache.shape(3), all = p.pages * block;
  // In the order in which attention wants them, or it would copy them once more.
  if (!p.run && int64_t(cache.shape(0)) * block * heads <= INT32_MAX)
    return b.take_wide(b.reshape(cache, {cache.shape(0) * block * heads, dim}), rows_of(b, cache, p));
  auto pages = p.run ? b.rows(cache, *p.run, *p.run + p.pages) : b.take(cache, p.table, 0);
  auto keys = b.reshape(pages, {p.batch, all, cache.shape(2), cache.shape(3)});
  if (p.keys < all) keys = b.cut(keys, 1, 0, p.keys);
  return b.transpose(keys, {0, 2, 1, 3});
}

inline array attend_part(
    Builder& b, const array& q, const array& k_cache, const std::optional<array>& v_cache, const array& table,
    const Part& p, const Scores& spec, int window, int value_dim) {
  auto mine = p.token_ids ? b.take(q, *p.token_ids, 0) : q;
  if (p.tokens == 1 && !p.run && decodes_in_place(b, q, k_cache, v_cache, spec, p.batch, p.keys))
    return decoded_in_place(b, mine, k_cache, *v_cache, p.positions, p.sequences, b.cast(table, mx::int32), spec, window);
  auto keys = keys_of(b, k_cache, p);
  auto values = v_cache ? keys_of(b, *v_cache, p) : b.cut(keys, 3, 0, value_dim);
  int heads = q.shape(1), dim = q.shape(2);
  // A single token needs no other order, which saves MLX a copy.
  bool single = p.tokens == 1;
  auto heads_first = [&](const array& a) { return single ? a : b.transpose(a, {0, 2, 1, 3}); };
  auto queries = heads_first(
      b.reshape(mine, single ? mx::Shape{p.batch, heads, 1, dim} : mx::Shape{p.batch, p.tokens, heads, dim}));
  std::optional<array> mask;
  bool causal = p.causal && !spec.softcap;
  if (!p.full && !causal) {
    auto at = b.reshape(p.positions, {p.batch, 1, p.tokens, 1});
    int first = p.first_page * k_cache.shape(1);
    mask = visible(b, at, mx::arange(first, first + keys.shape(2), 1, b.s), true, window);
  }
  auto out = heads_first(attend(b, queries, keys, values, spec, mask, causal));
  return b.reshape(out, {p.batch * p.tokens, heads, values.shape(3)});
}

// (q, k, v?, k_cache, v_cache?, positions, seq_ids, slot_mapping, block_table, sinks?) to (out, k_cache, v_cache?).
inline Arrays paged_attention(Builder& b, const Arrays& x, Words& a) {
  double scale = a.real();
  int window = a.number();
  auto softcap = a.maybe_real();
  bool has_sinks = a.flag();
  int value_dim = a.number();
  auto layout = static_cast<Layout>(a.number());
  int v = value_dim == 0 ? 1 : 0;
  Arrays news(x.begin() + 1, x.begin() + 2 + v), caches(x.begin() + 2 + v, x.begin() + 3 + 2 * v);
  Arrays where(x.begin() + 3 + 2 * v, x.begin() + 7 + 2 * v);
  Scores spec{scale, softcap, has_sinks ? std::optional(x.back()) : std::nullopt};
  if (x[0].shape(0) == 0) {
    caches.insert(caches.begin(), mx::zeros({0, x[0].shape(1), v ? caches[1].shape(3) : value_dim}, x[0].dtype(), b.s));
    return caches;
  }
  auto& step = sequences_of(b, where, caches[0].shape(1), window, layout);
  for (size_t i = 0; i < caches.size(); i++) {
    auto shape = caches[i].shape();
    auto flat = b.reshape(caches[i], {shape[0] * shape[1], shape[2], shape[3]});
    auto rows = b.cast(news[i], flat.dtype());
    bool beyond = step.last_slot >= flat.shape(0);
    flat = step.slots_run && !beyond
        ? b.put_run(flat, *step.slots_run, rows)
        : b.put_rows(flat, where[2], rows, beyond ? Inside::unknown : step.slots);
    caches[i] = b.reshape(flat, shape);
  }
  auto values = v ? std::optional(caches[1]) : std::nullopt;
  Arrays outs;
  for (auto& p : step.parts) outs.push_back(attend_part(b, x[0], caches[0], values, where[3], p, spec, window, value_dim));
  auto out = outs.size() == 1 ? outs[0] : mx::concatenate(outs, 0, b.s);
  if (step.order) out = b.take(out, *step.order, 0);
  if (step.strays) out = b.where(mx::greater(*step.strays, array(0), b.s), b.like(0, out), out);
  caches.insert(caches.begin(), out);
  return caches;
}

} // namespace mlxcel
