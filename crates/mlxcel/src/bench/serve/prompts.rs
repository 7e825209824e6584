//! Prompts of random English words, and other draws, all from one seed: the same numbers give the same requests in any
//! order, on any machine. Most tokenizers have a token for each of these words.

const WORDS: &str = "\
    able about above across after again age air all also always animal answer any area arm around art ask away back ball \
    bank base bear beat because bed before begin behind best better between big bird black blue board boat body book both \
    box boy bread break bring brother brown build bus busy buy call came can car care carry case catch cause center chair \
    chance change check child city class clean clear close cloud coat cold color come common cook corn cost could count \
    country course cover cross cry cup cut dance dark day deal deep door down draw dream dress drink drive drop dry each ear \
    early earth east easy eat edge egg eight end energy even ever every eye face fact fall family far farm fast father fear \
    feel feet few field fight fill find fine fire first fish five floor flow flower fly follow food foot force forest form \
    four free friend from front fruit full game garden gave get girl give glass gold good grass gray great green ground \
    group grow guess half hand happy hard hat have head hear heart heat help here high hill history hold home hope horse \
    hot hour house how ice idea inch island jump just keep key kind king know lake land large last late laugh law lead \
    learn leave left less letter level life light like line list little live long look love low machine main make man map \
    mark market may mean milk mind mine money month moon more morning most mother mountain move much music name near need \
    never new night nine noon north nose note number ocean off often oil old once one only open order other over page paper";

/// A generator of 64 bits, [SplitMix](https://doi.org/10.1145/2660193.2660195).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// One of its own for each combination of numbers.
    pub fn new(seed: u64, purpose: Purpose, index: u64) -> Self {
        let mut random = Random(seed);
        for number in [purpose as u64, index] {
            random = Random(random.next() ^ number.wrapping_mul(0xd134_2543_de82_ef95));
        }
        random
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 inclusive to 1 exclusive.
    pub fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// From 0 inclusive to `end` exclusive, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// The time to the next of events that come `rate` times in a second on average, each independent of the others.
    pub fn wait_s(&mut self, rate: f64) -> f64 {
        -(1.0 - self.fraction()).ln() / rate
    }
}

/// What numbers are drawn for, so that one draw does not change another.
#[derive(Clone, Copy, Debug)]
pub enum Purpose {
    Run = 1,
    Shared,
    Own,
    Cancel,
    Arrivals,
}

/// The prompts of one run.
#[derive(Debug)]
pub struct Prompts {
    words: Vec<&'static str>,
    shared: String,
    own: usize,
    seed: u64,
}

impl Prompts {
    /// With so many words that all prompts begin with, and so many that each has for itself.
    pub fn new(seed: u64, shared: usize, own: usize) -> Self {
        let mut prompts =
            Prompts { words: WORDS.split_whitespace().collect(), shared: String::new(), own, seed };
        prompts.shared = prompts.text(Random::new(seed, Purpose::Shared, 0), shared);
        prompts
    }

    pub fn prompt(&self, index: u64) -> String {
        let own = self.text(Random::new(self.seed, Purpose::Own, index), self.own);
        let blank = if self.shared.is_empty() || own.is_empty() { "" } else { " " };
        format!("{}{blank}{own}", self.shared)
    }

    fn text(&self, mut random: Random, count: usize) -> String {
        let word = |_| self.words[random.below(self.words.len() as u64) as usize];
        (0..count).map(word).collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_share_their_beginning_and_nothing_else() {
        let prompts = Prompts::new(1, 30, 20);
        let [first, second] = [0, 1].map(|i| prompts.prompt(i));
        let words = |text: &str| text.split(' ').map(str::to_string).collect::<Vec<_>>();
        let (first, second) = (words(&first), words(&second));
        assert_eq!((first.len(), second.len()), (50, 50));
        assert_eq!(first[..30], second[..30]);
        assert_ne!(first[30..], second[30..]);
        assert!(first.iter().all(|word| word.chars().all(|c| c.is_ascii_lowercase())));
    }

    #[test]
    fn a_seed_gives_the_same_prompts_in_any_order_and_another_seed_gives_others() {
        let (one, same, other) = (Prompts::new(1, 5, 5), Prompts::new(1, 5, 5), Prompts::new(2, 5, 5));
        let forwards: Vec<_> = (0..4).map(|i| one.prompt(i)).collect();
        let mut backwards: Vec<_> = (0..4).rev().map(|i| same.prompt(i)).collect();
        backwards.reverse();
        assert_eq!(forwards, backwards);
        assert_ne!(forwards[0], other.prompt(0));
        assert_eq!(Prompts::new(1, 3, 0).prompt(0).split(' ').count(), 3);
        assert_eq!(Prompts::new(1, 0, 3).prompt(0).split(' ').count(), 3);
    }

    /// The first outputs for a state of 1234567, as Rosetta Code and the Java library list them.
    #[test]
    fn the_generator_is_splitmix() {
        let mut random = Random(1_234_567);
        let expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431];
        assert_eq!([(); 4].map(|()| random.next()), expected);
    }

    #[test]
    fn waits_are_those_of_a_poisson_process() {
        let mut random = Random::new(3, Purpose::Arrivals, 0);
        let waits: Vec<f64> = (0..20_000).map(|_| random.wait_s(4.0)).collect();
        let mean = waits.iter().sum::<f64>() / waits.len() as f64;
        assert!((mean - 0.25).abs() < 0.01, "{mean}");
        let longer = waits.iter().filter(|&&wait| wait > 0.25).count() as f64 / waits.len() as f64;
        assert!((longer - (-1.0f64).exp()).abs() < 0.015, "{longer}");
        assert!(waits.iter().all(|wait| wait.is_finite() && *wait >= 0.0));
    }
}
