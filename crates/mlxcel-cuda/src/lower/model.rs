//! What models are made of beside products: norms, rotation, attention over the cache, recurrent layers, sampling.

use mlxcel_ir::{DType, Node, Op, PagedSpec};

use super::{Lower, Result, grid};
use crate::params::Params;
use crate::tape::RootKind;
use crate::view::{View, code};

/// Keys that one block of threads takes, and its warps; as in `kernels/attention.cu`.
const CHUNK: usize = 256;
const WARPS: usize = 8;

/// The same in `kernels/decode.cu`.
const NARROW_CHUNK: usize = 1024;

impl Lower<'_> {
    pub(super) fn model_op(&mut self, node: &Node, x: &[View]) -> Result<Vec<View>> {
        match &node.op {
            Op::RmsNorm { eps, .. } => Ok(vec![self.norm("rms_norm", &x[0], (x.get(1), None), *eps)?]),
            Op::LayerNorm { eps, weight, bias } => {
                let mut rest = x[1..].iter();
                let weight = if *weight { rest.next() } else { None };
                let bias = if *bias { rest.next() } else { None };
                Ok(vec![self.norm("layer_norm", &x[0], (weight, bias), *eps)?])
            }
            Op::Softmax { .. } => Ok(vec![self.norm("softmax", &x[0], (None, None), 0.0)?]),
            Op::AddRmsNorm { eps } => self.add_norm(x, *eps),
            Op::Rope { .. } => Ok(vec![self.rope(&node.op, x)?]),
            Op::PagedAttention(spec) => self.paged(node, x, spec, None),
            Op::SelectiveScan => self.recurrent(x, 6),
            Op::CausalConv => self.recurrent(x, 3),
            Op::Sample => Ok(vec![self.sample(node, x)?]),
            op => Err(crate::unsupported(op, &node.types)),
        }
    }

    pub(super) fn rms_norm(&mut self, x: &View, weight: &View, eps: f64) -> Result<View> {
        self.norm("rms_norm", x, (Some(weight), None), eps)
    }

    fn norm(
        &mut self,
        name: &'static str,
        x: &View,
        (weight, bias): (Option<&View>, Option<&View>),
        eps: f64,
    ) -> Result<View> {
        let (x, rows, stride) = self.row_operand(x)?;
        let out = self.fresh(x.dtype, &x.shape)?;
        let weight = weight.map(|w| self.dense(w)).transpose()?;
        let bias = bias.map(|b| self.dense(b)).transpose()?;
        let width = x.shape.last().copied().unwrap_or(1);
        let p =
            Params::new().view(&x).null().null().view_or_null(weight.as_ref()).view_or_null(bias.as_ref());
        let p = p.view(&out).long(stride).long(0).int(rows).int(width).int(code(x.dtype));
        let p = p
            .int(weight.as_ref().map_or(0, |w| code(w.dtype)))
            .int(bias.as_ref().map_or(0, |b| code(b.dtype)));
        let shared = if name == "softmax" { 0 } else { width * 4 };
        if width > 0 {
            let threads = if name == "rms_norm" { RMS_THREADS } else { threads(width) };
            self.launch(name, grid([rows, 1, 1], threads, shared), p.float(eps))?;
        }
        Ok(out)
    }

    fn add_norm(&mut self, x: &[View], eps: f64) -> Result<Vec<View>> {
        let (a, rows, stride) = self.row_operand(&x[0])?;
        let (b, _, other) = self.row_operand(&x[1])?;
        let weight = self.dense(&x[2])?;
        let (sum, out) = (self.fresh(a.dtype, &a.shape)?, self.fresh(a.dtype, &a.shape)?);
        let width = a.shape.last().copied().unwrap_or(1);
        let p = Params::new().view(&a).view(&b).view(&sum).view(&weight).null().view(&out);
        let p = p.long(stride).long(other).int(rows).int(width).int(code(a.dtype)).int(code(weight.dtype));
        self.launch("rms_norm", grid([rows, 1, 1], RMS_THREADS, width * 4), p.int(0).float(eps))?;
        Ok(vec![sum, out])
    }

    fn rope(&mut self, op: &Op, x: &[View]) -> Result<View> {
        let (t, positions) = (self.heads(&x[0])?, self.dense(&x[1])?);
        let frequencies = self.dense(&x[2])?;
        let out = self.fresh(t.dtype, &t.shape)?;
        let p = rope_params(Params::new(), op, (&t, Some(&out)), (&positions, &frequencies));
        self.launch("rope", grid([t.shape[0], 1, 1], 256, 0), p)?;
        Ok(out)
    }

    /// `[tokens, heads, width]` whose heads lie side by side; tokens may be apart.
    fn heads(&mut self, x: &View) -> Result<View> {
        let width = x.shape[2] as i64;
        let fits = (x.shape[2] == 1 || x.strides[2] == 1) && (x.shape[1] == 1 || x.strides[1] == width);
        if fits { Ok(x.clone()) } else { self.copied(x) }
    }

    /// `angles`: queries and keys are still to be rotated, by this op, these positions and frequencies.
    pub(super) fn paged(
        &mut self,
        node: &Node,
        x: &[View],
        spec: &PagedSpec,
        angles: Option<(&Op, View, View)>,
    ) -> Result<Vec<View>> {
        let values = usize::from(spec.value_dim.is_none());
        let mut q = self.heads(&x[0])?;
        let k = self.heads(&x[1])?;
        let v = if values == 1 { Some(self.heads(&x[2])?) } else { None };
        let k_cache = self.taken(&x[2 + values])?;
        let v_cache = if values == 1 { Some(self.taken(&x[4])?) } else { None };
        let rest: Vec<View> =
            x[3 + 2 * values..].iter().map(|v| self.dense(v)).collect::<Result<Vec<_>>>()?;
        let [tokens, hkv] = [q.shape[0], k.shape[1]];
        let (block, width) = (k_cache.shape[1], k.shape[2]);
        let value_width = spec.value_dim.unwrap_or_else(|| v.as_ref().map_or(width, |v| v.shape[2]));
        let slots = &rest[2];
        let mut start = Params::new();
        let mut name = "write_cache";
        let mut is_turned = false;
        if let Some((op, positions, frequencies)) = angles {
            let (positions, frequencies) = (self.dense(&positions)?, self.dense(&frequencies)?);
            is_turned = v.as_ref().is_some_and(|v| {
                let known = [&positions, &frequencies, &rest[0], &rest[1], slots, &rest[3]];
                self.turns(spec, [&q, &k, v], (&k_cache, v_cache.as_ref().unwrap_or(&k_cache)), &known)
            });
            // Attention that rotates its queries itself has them as they are.
            let rotated = if is_turned { q.clone() } else { self.fresh(q.dtype, &q.shape)? };
            start = rope_params(start, op, (&q, Some(&rotated)), (&positions, &frequencies)).end();
            start = rope_params(start, op, (&k, None), (&positions, &frequencies)).end();
            (q, name) = (rotated, "rope_write");
        }
        let p = start.view(&k_cache).view_or_null(v_cache.as_ref()).view(&k).view_or_null(v.as_ref());
        let p = p.view(slots).long(k.strides[0]).long(v.as_ref().map_or(0, |v| v.strides[0]));
        let v_type = v_cache.as_ref().map_or(0, |c| code(c.dtype));
        let p = p.int(code(k.dtype)).int(code(k_cache.dtype)).int(v_type).int(code(slots.dtype));
        let p = p.int(hkv * width).int(if values == 1 { hkv * value_width } else { 0 });
        let p = p.long((k_cache.shape[0] * block) as i64);
        let out = self.fresh_like(&node.types[0])?;
        let shared_values = v_cache.as_ref().unwrap_or(&k_cache);
        let turned = is_turned.then(|| p.clone().end());
        let job =
            Paged { q: &q, k: &k_cache, v: shared_values, out: &out, rest: &rest, spec, value_width, turned };
        let caches =
            || [Some(out.clone()), Some(k_cache.clone()), v_cache.clone()].into_iter().flatten().collect();
        if is_turned {
            self.attend(&job)?;
            return Ok(caches());
        }
        // A few tokens are shared out among several blocks each.
        let each = if tokens <= 64 { 4 } else { 16 };
        let parts = if name == "rope_write" && tokens <= 512 { (q.shape[1] + hkv).div_ceil(each) } else { 1 };
        self.launch(name, grid([tokens, parts, 1], 256, 0), p)?;
        self.attend(&job)?;
        Ok(caches())
    }

    /// Whether attention rotates queries and keys and writes the cache itself: each sequence has one token, and what says
    /// where and how is there before the step begins.
    fn turns(
        &self,
        spec: &PagedSpec,
        [q, k, v]: [&View; 3],
        caches: (&View, &View),
        known: &[&View; 6],
    ) -> bool {
        let job = Paged {
            q,
            k: caches.0,
            v: caches.1,
            out: q,
            rest: &known[2..].iter().map(|v| (*v).clone()).collect::<Vec<_>>(),
            spec,
            value_width: v.shape[2],
            turned: None,
        };
        let alike = [k.dtype, v.dtype, caches.0.dtype, caches.1.dtype].iter().all(|d| *d == q.dtype);
        let fixed = |v: &&View| matches!(self.roots[v.root].kind, RootKind::Fed | RootKind::Fixed(_));
        let one_each = !self.ctx.exact && known[5].shape[0] == q.shape[0] && q.shape[0] <= TURNED_MAX;
        let aligned = v.offset % 8 == 0 && v.strides[0] % 8 == 0;
        one_each && alike && aligned && narrow(&job, q.shape[2]).is_some() && known.iter().all(fixed)
    }

    fn attend(&mut self, job: &Paged<'_>) -> Result<()> {
        let [tokens, heads, width] = [job.q.shape[0], job.q.shape[1], job.q.shape[2]];
        let (block, hkv) = (job.k.shape[1], job.k.shape[2]);
        let table = &job.rest[3];
        let pages = table.shape[1];
        if let Some(name) = flash(job, tokens, width).filter(|_| !self.ctx.exact) {
            let p = self.attention_params(job, (None, 1));
            // Two tiles of 64 keys and values; the queries lie there first.
            return self.launch(name, grid([tokens.div_ceil(128), heads, 1], 256, 4 * 64 * width * 2), p);
        }
        let (name, at_once) = variant(job.k.dtype, width, job.value_width);
        let sets = hkv * (heads / hkv).div_ceil(at_once);
        let narrow = narrow(job, width);
        let chunk = if narrow.is_some() { NARROW_CHUNK } else { CHUNK };
        let mut chunks = (pages * block).div_ceil(chunk);
        if let Some(window) = job.spec.window {
            chunks = chunks.min(window.div_ceil(chunk) + 1);
        }
        let apart = chunks > 1;
        let splits = if apart { chunks } else { 1 };
        let partial = if apart {
            Some(self.fresh(DType::F32, &[tokens * heads * splits * (job.value_width + 2)])?)
        } else {
            None
        };
        let p = self.attention_params(job, (partial.as_ref(), splits));
        if let Some((name, turning, join)) = narrow {
            // For each of eight warps 16 keys and values.
            let shape = grid([tokens, sets, splits], 256, 8 * 32 * width * 2);
            match &job.turned {
                Some(turned) => self.launch(turning, shape, p.clone().join(turned.clone()))?,
                None => self.launch(name, shape, p.clone())?,
            }
            return if apart { self.launch(join, grid([tokens, heads, 1], 512, 0), p) } else { Ok(()) };
        }
        let room = at_once * job.value_width;
        let shared = 4 * (WARPS * room + 2 * WARPS * at_once);
        self.launch(name, grid([tokens, sets, splits], 256, shared), p.clone())?;
        if apart {
            self.launch("attention_join", grid([tokens, heads, 1], 128, 0), p)?;
        }
        Ok(())
    }

    /// The fields of the kernels' struct; chunks go to `partial` if they are computed apart.
    fn attention_params(&self, job: &Paged<'_>, (partial, splits): (Option<&View>, usize)) -> Params {
        let [tokens, heads, width] = [job.q.shape[0], job.q.shape[1], job.q.shape[2]];
        let (block, hkv) = (job.k.shape[1], job.k.shape[2]);
        let table = &job.rest[3];
        let (sequences, pages) = (table.shape[0], table.shape[1]);
        let sinks = job.rest.get(4);
        let p = Params::new().view(job.q).view(job.out).view(job.k).view(job.v);
        let p = p.view(&job.rest[0]).view(&job.rest[1]).view(table).view_or_null(sinks);
        let p = p.view_or_null(partial).long(job.q.strides[0]).int(code(job.q.dtype));
        let p = p.int(code(job.rest[0].dtype)).int(code(job.rest[1].dtype)).int(code(table.dtype));
        let p = p.int(sinks.map_or(0, |s| code(s.dtype))).int(tokens).int(heads).int(hkv).int(width);
        let p = p.int(job.value_width).int(job.v.shape[3]).int(block).int(pages).int(sequences);
        let p = p.int(job.spec.window.unwrap_or(0)).int(splits).float(job.spec.scale);
        let fed = |v: &View| self.roots[v.root].kind == RootKind::Fed;
        let early = [0, 1, 3].iter().all(|&i| fed(&job.rest[i]));
        p.float(job.spec.softcap.unwrap_or(0.0)).flag(sinks.is_some()).flag(early).end()
    }

    /// Recurrent layers; `at` is the operand that holds the state.
    fn recurrent(&mut self, x: &[View], at: usize) -> Result<Vec<View>> {
        let mut dense = vec![];
        for (i, v) in x.iter().enumerate() {
            dense.push(if i == at { self.taken(v)? } else { self.dense(v)? });
        }
        let out = self.fresh(x[0].dtype, &x[0].shape)?;
        let [tokens, channels] = [x[0].shape[0], x[0].shape[1]];
        let p = Params::new().view(&dense[0]);
        let scan = at == 6;
        let (p, width) = if scan {
            (dense[1..6].iter().fold(p, Params::view), dense[2].shape[1])
        } else {
            (p.null().view(&dense[1]).view(&dense[2]).null().null(), dense[1].shape[1])
        };
        let state = dense[at].clone();
        let p = p.view(&state).view(&out).view(&dense[at + 1]).view(&dense[at + 2]).int(code(out.dtype));
        let p = p.int(code(dense[at + 1].dtype)).int(code(dense[at + 2].dtype));
        let p = p.int(tokens).int(channels).int(width).int(state.shape[0]);
        let (name, each) = if scan { ("selective_scan", 4) } else { ("causal_conv", 128) };
        self.launch(name, grid([channels.div_ceil(each), 1, 1], 128, 0), p)?;
        Ok(vec![out, state])
    }

    fn sample(&mut self, node: &Node, x: &[View]) -> Result<View> {
        let out = self.fresh_like(&node.types[0])?;
        let (logits, rows, stride) = self.row_operand(&x[0])?;
        let dense = x[1..].iter().map(|v| self.dense(v)).collect::<Result<Vec<_>>>()?;
        let p = dense.iter().fold(Params::new().view(&logits), Params::view).view(&out);
        let p = p.long(stride).int(code(logits.dtype)).int(logits.shape[1]);
        self.launch("sample", grid([rows, 1, 1], 1024, 0), p)?;
        Ok(out)
    }
}

/// The fields of a rotation.
fn rope_params(
    p: Params,
    op: &Op,
    (x, out): (&View, Option<&View>),
    (positions, frequencies): (&View, &View),
) -> Params {
    let (interleaved, scale) = match op {
        Op::Rope { interleaved, scale } => (*interleaved, *scale),
        _ => (false, 1.0),
    };
    let half = frequencies.shape.last().copied().unwrap_or(0);
    let stride = if frequencies.shape.len() > 1 { half as i64 } else { 0 };
    let p = p.view(x).view_or_null(out).view(positions).view(frequencies).long(x.strides[0]).long(stride);
    let p = p.int(x.shape[0]).int(x.shape[1]).int(x.shape[2]).int(half).int(code(x.dtype));
    p.int(code(positions.dtype)).flag(interleaved).float(scale)
}

/// Attention to be computed, once the cache is written.
struct Paged<'a> {
    q: &'a View,
    k: &'a View,
    v: &'a View,
    out: &'a View,
    /// Positions, sequences, slots, table, sinks.
    rest: &'a [View],
    spec: &'a PagedSpec,
    value_width: usize,
    /// How queries and keys are rotated and where they go, if that is still to be done.
    turned: Option<Params>,
}

/// Tokens up to which attention rotates and writes itself; with more, a kernel of its own does it beside them.
const TURNED_MAX: usize = 32;

/// Tokens from which on tensor cores are worth their tiles of 64.
const FLASH: usize = 33;

/// The kernel for many tokens of 16-bit numbers, if there is one for these heads. A step of one token for each sequence
/// has little to share between its tokens.
fn flash(job: &Paged<'_>, tokens: usize, width: usize) -> Option<&'static str> {
    let sequences = job.rest[3].shape[0];
    let alike = job.q.dtype == job.k.dtype && job.value_width == width && job.v.shape[3] == width;
    let aligned = job.q.offset % 8 == 0 && job.q.strides[0] % 8 == 0;
    if !alike || !aligned || tokens < FLASH.max(4 * sequences) {
        return None;
    }
    match (job.q.dtype, width) {
        (DType::BF16, 64) => Some("flash_bf16_64"),
        (DType::BF16, 128) => Some("flash_bf16_128"),
        (DType::F16, 64) => Some("flash_f16_64"),
        (DType::F16, 128) => Some("flash_f16_128"),
        _ => None,
    }
}

/// The kernels that attend for single tokens of 16-bit numbers, that rotate and write them too, and that join their chunks, if
/// there are for these heads.
fn narrow(job: &Paged<'_>, width: usize) -> Option<(&'static str, &'static str, &'static str)> {
    macro_rules! names {
        ($name:literal) => {
            Some((
                concat!("decode_", $name),
                concat!("decode_turned_", $name),
                concat!("decode_join_", $name),
            ))
        };
    }
    let alike = job.q.dtype == job.k.dtype && job.value_width == width && job.v.shape[3] == width;
    let aligned = job.q.offset % 8 == 0 && job.q.strides[0] % 8 == 0;
    match (job.q.dtype, width) {
        _ if !alike || !aligned => None,
        (DType::BF16, 64) => names!("bf16_64"),
        (DType::BF16, 128) => names!("bf16_128"),
        (DType::F16, 64) => names!("f16_64"),
        (DType::F16, 128) => names!("f16_128"),
        _ => None,
    }
}

/// As many as products have that norm their rows themselves, so that sums are the same.
const RMS_THREADS: u32 = 256;

/// Threads for a row.
fn threads(width: usize) -> u32 {
    (width.div_ceil(4).next_multiple_of(32)).clamp(32, 1024) as u32
}

/// The largest heads that attention takes.
pub(crate) const HEAD_MAX: usize = 18 * 32;

/// The kernel for heads of this width, and how many heads it takes at once.
fn variant(cache: DType, width: usize, value_width: usize) -> (&'static str, usize) {
    macro_rules! names {
        ($name:literal) => {
            match cache {
                DType::F32 => concat!("attend_f32_", $name),
                DType::BF16 => concat!("attend_bf16_", $name),
                _ => concat!("attend_f16_", $name),
            }
        };
    }
    let widest = width.max(value_width);
    match (width == value_width, width) {
        (true, 64) => (names!("64_grouped"), 4),
        (true, 128) => (names!("128_grouped"), 4),
        _ if widest <= 128 => (names!("small"), 4),
        _ if widest <= 256 => (names!("large"), 2),
        _ => (names!("largest"), 1),
    }
}
