//! Methods for composites.

use super::{Builder, Tensor};
use crate::dtype::DType;
use crate::op::{Activation, AttentionSpec, CacheRow, Op, PagedSpec, PoolKind, RouteSpec};

/// The parts of a ragged batch that paged attention reads.
#[derive(Clone, Copy, Debug)]
pub struct PagedBatch<'g> {
    pub positions: Tensor<'g>,
    pub seq_ids: Tensor<'g>,
    pub slot_mapping: Tensor<'g>,
    pub block_table: Tensor<'g>,
    /// The type that keys and values are kept in; their own if `None`.
    pub cache: Option<DType>,
}

/// Per-row sampling parameters.
#[derive(Clone, Copy, Debug)]
pub struct SampleParams<'g> {
    pub temperature: Tensor<'g>,
    pub top_k: Tensor<'g>,
    pub top_p: Tensor<'g>,
    pub min_p: Tensor<'g>,
    pub seed: Tensor<'g>,
    pub step: Tensor<'g>,
}

impl<'g> Tensor<'g> {
    pub fn activation(self, kind: Activation) -> Tensor<'g> {
        self.builder.one(Op::Activation(kind), &[self])
    }

    pub fn softmax(self, axis: usize) -> Tensor<'g> {
        self.builder.one(Op::Softmax { axis }, &[self])
    }

    pub fn layer_norm(self, eps: f64, weight: Option<Tensor<'g>>, bias: Option<Tensor<'g>>) -> Tensor<'g> {
        let op = Op::LayerNorm { eps, weight: weight.is_some(), bias: bias.is_some() };
        let inputs: Vec<_> = [Some(self), weight, bias].into_iter().flatten().collect();
        self.builder.one(op, &inputs)
    }

    pub fn rms_norm(self, eps: f64, weight: Option<Tensor<'g>>) -> Tensor<'g> {
        let inputs: Vec<_> = [Some(self), weight].into_iter().flatten().collect();
        self.builder.one(Op::RmsNorm { eps, weight: weight.is_some() }, &inputs)
    }

    pub fn group_norm(self, groups: usize, eps: f64, weight: Tensor<'g>, bias: Tensor<'g>) -> Tensor<'g> {
        self.builder.one(Op::GroupNorm { eps, groups }, &[self, weight, bias])
    }

    /// Halves of the rotated part are paired, or neighbours if `op` says interleaved.
    pub fn rope(self, positions: Tensor<'g>, inv_freq: Tensor<'g>, op: Op) -> Tensor<'g> {
        self.builder.one(op, &[self, positions, inv_freq])
    }

    pub fn linear(self, weight: Tensor<'g>, bias: Option<Tensor<'g>>) -> Tensor<'g> {
        let inputs: Vec<_> = [Some(self), Some(weight), bias].into_iter().flatten().collect();
        self.builder.one(Op::Linear { bias: bias.is_some() }, &inputs)
    }

    /// `self` is the table.
    pub fn embedding(self, ids: Tensor<'g>, dtype: DType) -> Tensor<'g> {
        self.builder.one(Op::Embedding { dtype }, &[self, ids])
    }

    pub fn expert_linear(self, weight: Tensor<'g>, ids: Tensor<'g>, bias: Option<Tensor<'g>>) -> Tensor<'g> {
        let inputs: Vec<_> = [Some(self), Some(weight), Some(ids), bias].into_iter().flatten().collect();
        self.builder.one(Op::ExpertLinear { bias: bias.is_some() }, &inputs)
    }

    /// Weights and ids of the chosen experts.
    pub fn moe_route(self, spec: RouteSpec, correction: Option<Tensor<'g>>) -> [Tensor<'g>; 2] {
        let inputs: Vec<_> = [Some(self), correction].into_iter().flatten().collect();
        self.builder.results(Op::MoeRoute(RouteSpec { correction: correction.is_some(), ..spec }), &inputs)
    }

    /// The `k` largest of the last axis and where they were.
    pub fn top_k(self, k: usize) -> [Tensor<'g>; 2] {
        self.builder.results(Op::TopK { k }, &[self])
    }

    pub fn argmax(self, axis: usize) -> Tensor<'g> {
        self.builder.one(Op::ArgMax { axis }, &[self])
    }

    pub fn sample(self, p: SampleParams<'g>) -> Tensor<'g> {
        let inputs = [self, p.temperature, p.top_k, p.top_p, p.min_p, p.seed, p.step];
        self.builder.one(Op::Sample, &inputs)
    }

    pub fn pool(
        self,
        kind: PoolKind,
        window: &[usize],
        strides: &[usize],
        padding: &[(usize, usize)],
    ) -> Tensor<'g> {
        let (window, strides, padding) = (window.to_vec(), strides.to_vec(), padding.to_vec());
        self.builder.one(Op::Pool { kind, window, strides, padding }, &[self])
    }

    /// Fourier transform of `self` (real part) and `im` along the last axis.
    pub fn fft(self, im: Tensor<'g>) -> [Tensor<'g>; 2] {
        self.builder.results(Op::Fft { inverse: false }, &[self, im])
    }

    pub fn ifft(self, im: Tensor<'g>) -> [Tensor<'g>; 2] {
        self.builder.results(Op::Fft { inverse: true }, &[self, im])
    }

    pub fn rfft(self) -> [Tensor<'g>; 2] {
        self.builder.results(Op::Rfft, &[self])
    }

    pub fn irfft(self, im: Tensor<'g>, n: usize) -> Tensor<'g> {
        self.builder.one(Op::Irfft { n }, &[self, im])
    }

    /// The transform of the last `axes` axes, one after the other.
    pub fn fft_nd(self, im: Tensor<'g>, axes: usize, inverse: Op) -> [Tensor<'g>; 2] {
        let rank = self.rank();
        let (mut re, mut im) = (self, im);
        for axis in rank.saturating_sub(axes)..rank {
            let mut perm: Vec<usize> = (0..rank).collect();
            perm.swap(axis, rank - 1);
            let [r, i] = self.builder.results(inverse.clone(), &[re.transpose(&perm), im.transpose(&perm)]);
            (re, im) = (r.transpose(&perm), i.transpose(&perm));
        }
        [re, im]
    }
}

impl Builder {
    /// Dense attention; `spec.mask` and `spec.sinks` follow the options.
    pub fn attention<'g>(
        &'g self,
        qkv: [Tensor<'g>; 3],
        mask: Option<Tensor<'g>>,
        sinks: Option<Tensor<'g>>,
        spec: AttentionSpec,
    ) -> Tensor<'g> {
        let spec = AttentionSpec { mask: mask.is_some(), sinks: sinks.is_some(), ..spec };
        let inputs: Vec<_> = qkv.into_iter().chain(mask).chain(sinks).collect();
        self.one(Op::Attention(spec), &inputs)
    }

    /// Attention over states `k_cache.{layer}` and `v_cache.{layer}`, which it declares and updates. Without `v`,
    /// `spec.value_dim` must say how much of each key is its value.
    pub fn paged_attention<'g>(
        &'g self,
        (q, k, v): (Tensor<'g>, Tensor<'g>, Option<Tensor<'g>>),
        batch: PagedBatch<'g>,
        sinks: Option<Tensor<'g>>,
        layer: usize,
        spec: PagedSpec,
    ) -> Tensor<'g> {
        let spec = PagedSpec { sinks: sinks.is_some(), ..spec };
        let names: Vec<String> = ["k_cache", "v_cache"].map(|n| format!("{n}.{layer}")).to_vec();
        let cache = |(t, name): (Tensor<'g>, &String)| {
            let dtype = batch.cache.unwrap_or(t.dtype());
            let width = CacheRow::width(dtype, &t.dim(2));
            self.state(name, dtype, vec!["blocks".into(), "block".into(), t.dim(1), width])
        };
        let new: Vec<Tensor<'g>> = std::iter::once(k).chain(v).collect();
        let caches: Vec<Tensor<'g>> = new.iter().copied().zip(&names).map(cache).collect();
        let mut inputs = vec![q];
        inputs.extend(new);
        inputs.extend(caches);
        inputs.extend([batch.positions, batch.seq_ids, batch.slot_mapping, batch.block_table]);
        inputs.extend(sinks);
        let results = self.apply(Op::PagedAttention(spec), &inputs);
        for (name, t) in names.iter().zip(results.iter().skip(1)) {
            self.update(name, *t);
        }
        results.first().copied().unwrap_or_else(|| self.placeholder())
    }
}
