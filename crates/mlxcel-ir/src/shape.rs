//! Dimensions and shapes. A dimension is a number, a named symbol bound when a program runs, or a polynomial of
//! both, kept in one canonical form so that equal dimensions compare equal.
//!
//! The legend used in comments and graphs throughout the workspace:
//!
//! | name | meaning |
//! |---|---|
//! | `tokens` T | new tokens of all sequences in a step, laid end to end |
//! | `sequences` S | sequences in a step |
//! | `rows` R | tokens whose logits are wanted |
//! | `pages` P | blocks in the longest block table of a step |
//! | `blocks`, `block` | KV blocks in the pool, and tokens in a block |
//! | `slots` | recurrent-state slots in the pool |

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::dtype::DType;

/// Values of symbols at run time, or when a graph is specialised.
pub type Bindings = BTreeMap<String, usize>;

/// A dimension: a sum of terms, each a coefficient times a sorted product of symbols.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Dim(BTreeMap<Vec<String>, i64>);

impl Dim {
    pub fn fixed(n: usize) -> Self {
        Self::term(i64::try_from(n).unwrap_or(i64::MAX), vec![])
    }

    /// A named dimension. Names are letters, digits and underscores.
    pub fn sym(name: &str) -> Self {
        Self::term(1, vec![name.to_string()])
    }

    fn term(coefficient: i64, symbols: Vec<String>) -> Self {
        Dim(if coefficient == 0 { BTreeMap::new() } else { BTreeMap::from([(symbols, coefficient)]) })
    }

    /// The number, if no symbol occurs.
    pub fn as_fixed(&self) -> Option<usize> {
        match self.0.len() {
            0 => Some(0),
            1 => self.0.get(&vec![]).and_then(|&n| usize::try_from(n).ok()),
            _ => None,
        }
    }

    pub fn plus(&self, other: &Dim) -> Dim {
        let mut sum = self.0.clone();
        for (symbols, c) in &other.0 {
            let entry = sum.entry(symbols.clone()).or_insert(0);
            *entry = entry.saturating_add(*c);
        }
        sum.retain(|_, c| *c != 0);
        Dim(sum)
    }

    pub fn minus(&self, other: &Dim) -> Dim {
        self.plus(&other.times(&Self::term(-1, vec![])))
    }

    pub fn times(&self, other: &Dim) -> Dim {
        let mut product: BTreeMap<Vec<String>, i64> = BTreeMap::new();
        for (a, ca) in &self.0 {
            for (b, cb) in &other.0 {
                let mut symbols = [a.as_slice(), b.as_slice()].concat();
                symbols.sort();
                let entry = product.entry(symbols).or_insert(0);
                *entry = entry.saturating_add(ca.saturating_mul(*cb));
            }
        }
        product.retain(|_, c| *c != 0);
        Dim(product)
    }

    /// `self / other` when `other` is a single term that divides every term of `self`.
    pub fn divide(&self, other: &Dim) -> Option<Dim> {
        let (divisor, &by) = other.0.iter().next().filter(|_| other.0.len() == 1)?;
        let mut quotient = BTreeMap::new();
        for (symbols, c) in &self.0 {
            let mut rest = symbols.clone();
            for s in divisor {
                rest.remove(rest.iter().position(|r| r == s)?);
            }
            if c.checked_rem(by)? != 0 {
                return None;
            }
            quotient.insert(rest, c / by);
        }
        Some(Dim(quotient))
    }

    /// The value under `bindings`; `None` if a symbol is unbound or the value is negative or too large.
    pub fn eval(&self, bindings: &Bindings) -> Option<usize> {
        let mut sum = 0i64;
        for (symbols, &c) in &self.0 {
            let mut term = c;
            for s in symbols {
                term = term.checked_mul(i64::try_from(*bindings.get(s)?).ok()?)?;
            }
            sum = sum.checked_add(term)?;
        }
        usize::try_from(sum).ok()
    }

    /// The dimension with the symbols in `bindings` replaced by their values.
    pub fn bind(&self, bindings: &Bindings) -> Dim {
        let mut out = Dim(BTreeMap::new());
        for (symbols, &c) in &self.0 {
            let mut term = Self::term(c, vec![]);
            for s in symbols {
                term = term.times(&bindings.get(s).map_or_else(|| Dim::sym(s), |&n| Dim::fixed(n)));
            }
            out = out.plus(&term);
        }
        out
    }

    /// How many terms the polynomial has; products of shapes multiply it.
    pub(crate) fn terms(&self) -> usize {
        self.0.len()
    }

    /// The symbols that occur.
    pub fn symbols(&self) -> impl Iterator<Item = &str> {
        self.0.keys().flatten().map(String::as_str)
    }

    /// The name, if the dimension is exactly one symbol.
    pub fn as_symbol(&self) -> Option<&str> {
        match self.0.iter().next() {
            Some((symbols, 1)) if self.0.len() == 1 && symbols.len() == 1 => Some(&symbols[0]),
            _ => None,
        }
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("0");
        }
        for (i, (symbols, c)) in self.0.iter().rev().enumerate() {
            let sign = if *c < 0 { "-" } else { "+" };
            if i > 0 || *c < 0 {
                f.write_str(sign)?;
            }
            let name = symbols.join("*");
            match (c.unsigned_abs(), symbols.is_empty()) {
                (n, true) => write!(f, "{n}")?,
                (1, false) => f.write_str(&name)?,
                (n, false) => write!(f, "{n}*{name}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not a dimension such as `tokens`, `64` or `2*pages+1`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a dimension")]
pub struct BadDim(pub String);

/// Longer texts are refused: reading a sum takes time in the square of its length.
const TEXT_MAX: usize = 512;

impl std::str::FromStr for Dim {
    type Err = BadDim;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || BadDim(text.chars().take(TEXT_MAX).collect());
        if text.len() > TEXT_MAX {
            return Err(bad());
        }
        let mut sum = Dim::fixed(0);
        let spaced = text.replace('-', "+-");
        for term in spaced.strip_prefix('+').unwrap_or(&spaced).split('+') {
            let (sign, body) = term.strip_prefix('-').map_or((1, term), |t| (-1, t));
            let mut product = Self::term(sign, vec![]);
            for factor in body.split('*').map(str::trim) {
                let named = factor.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                    && factor.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
                product = product.times(&if named {
                    Dim::sym(factor)
                } else {
                    Dim::fixed(factor.parse().map_err(|_| bad())?)
                });
            }
            sum = sum.plus(&product);
        }
        Ok(sum)
    }
}

impl Serialize for Dim {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self.as_fixed() {
            Some(n) => s.serialize_u64(n as u64),
            None => s.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for Dim {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Number(u64),
            Text(String),
        }
        match Either::deserialize(d)? {
            Either::Number(n) => Ok(Dim::fixed(usize::try_from(n).unwrap_or(usize::MAX))),
            Either::Text(t) => t.parse().map_err(serde::de::Error::custom),
        }
    }
}

impl From<usize> for Dim {
    fn from(n: usize) -> Self {
        Dim::fixed(n)
    }
}

impl From<&str> for Dim {
    fn from(name: &str) -> Self {
        Dim::sym(name)
    }
}

impl From<&Dim> for Dim {
    fn from(d: &Dim) -> Self {
        d.clone()
    }
}

/// The dimensions of a tensor, outermost first.
pub type Shape = Vec<Dim>;

/// A shape from anything that converts to dimensions: `shape!["tokens", 8, 64]`.
#[macro_export]
macro_rules! shape {
    ($($d:expr),* $(,)?) => { vec![$($crate::Dim::from($d)),*] };
}

/// Element type and shape: the type of a value in a graph.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Type {
    pub dtype: DType,
    pub shape: Shape,
}

impl Type {
    pub fn new(dtype: DType, shape: Shape) -> Self {
        Type { dtype, shape }
    }

    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    pub fn with_dtype(&self, dtype: DType) -> Self {
        Type { dtype, shape: self.shape.clone() }
    }

    pub fn with_shape(&self, shape: Shape) -> Self {
        Type { dtype: self.dtype, shape }
    }

    /// Number of elements, as a dimension.
    pub fn elements(&self) -> Dim {
        product(&self.shape)
    }
}

/// The product of dimensions.
pub fn product(dims: &[Dim]) -> Dim {
    dims.iter().fold(Dim::fixed(1), |a, d| a.times(d))
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape)
    }
}

impl fmt::Debug for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_polynomials_are_equal_dimensions() {
        let (p, b) = (Dim::sym("pages"), Dim::sym("block"));
        let left = p.plus(&Dim::fixed(1)).times(&b);
        let right = b.times(&p).plus(&b);
        assert_eq!(left, right);
        assert_eq!(left.minus(&right), Dim::fixed(0));
        assert_eq!(
            p.times(&b).times(&Dim::fixed(6)).divide(&b.times(&Dim::fixed(3))),
            Some(p.times(&Dim::fixed(2)))
        );
        assert_eq!(p.divide(&b), None);
    }

    #[test]
    fn dimensions_parse_back_from_their_text() {
        for text in ["0", "64", "tokens", "block*pages", "2*tokens+1", "tokens-1", "3*block*pages+tokens+7"] {
            let d: Dim = text.parse().unwrap();
            assert_eq!(d.to_string().parse::<Dim>().unwrap(), d, "{text}");
        }
        assert!("1.5".parse::<Dim>().is_err());
        assert!("".parse::<Dim>().is_err());
    }

    #[test]
    fn evaluation_needs_every_symbol_and_a_value_that_is_not_negative() {
        let d: Dim = "2*tokens-3".parse().unwrap();
        assert_eq!(d.eval(&Bindings::from([("tokens".into(), 5)])), Some(7));
        assert_eq!(d.eval(&Bindings::from([("tokens".into(), 1)])), None);
        assert_eq!(d.eval(&Bindings::new()), None);
    }
}
