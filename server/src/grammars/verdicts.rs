//! Caches the results of trials for a while.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use engine::Grammar;

/// How long a refusal is cached. It covers a client's retries, but a grammar that failed only because the machine was
/// busy is soon tried again.
const REFUSED_FOR: Duration = Duration::from_secs(30);
/// How long a success is cached.
const ACCEPTED_FOR: Duration = Duration::from_secs(600);
/// Maximum number of cached verdicts.
const MAX_VERDICTS: usize = 1024;

/// Verdicts with the times at which they expire, by the keys of their grammars.
type Cache = HashMap<u128, (Instant, Result<(), String>)>;

/// Results of trials, by the hashes of their grammars.
#[derive(Debug, Default)]
pub(super) struct Verdicts {
    /// Two 64-bit hash functions. Clients do not know their keys, so they cannot construct grammars with equal hashes.
    hashers: [RandomState; 2],
    cache: Mutex<Cache>,
}

impl Verdicts {
    /// Returns the key of a grammar.
    pub fn key(&self, grammar: &Grammar) -> u128 {
        let text = format!("{grammar:?}");
        let [high, low] = self.hashers.each_ref().map(|hasher| u128::from(hasher.hash_one(&text)));
        high << 64 | low
    }

    /// Returns the cached verdict. `None` if there is none or it has expired.
    pub fn get(&self, key: u128) -> Option<Result<(), String>> {
        let cache = self.lock();
        cache.get(&key).filter(|(until, _)| *until > Instant::now()).map(|(_, verdict)| verdict.clone())
    }

    /// Caches that a trial succeeded.
    pub fn accept(&self, key: u128) {
        self.put(key, ACCEPTED_FOR, Ok(()));
    }

    /// Caches why a trial failed.
    pub fn refuse(&self, key: u128, why: &str) {
        self.put(key, REFUSED_FOR, Err(why.to_owned()));
    }

    fn put(&self, key: u128, time: Duration, verdict: Result<(), String>) {
        let (mut cache, now) = (self.lock(), Instant::now());
        if cache.len() >= MAX_VERDICTS {
            cache.retain(|_, (until, _)| *until > now);
        }
        if cache.len() >= MAX_VERDICTS {
            cache.clear();
        }
        cache.insert(key, (now + time, verdict));
    }

    fn lock(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_remembered_and_are_not_many() {
        let verdicts = Verdicts::default();
        let key = |text: &str| verdicts.key(&Grammar::Regex(text.into()));
        assert_ne!(key("a"), key("b"));
        verdicts.refuse(key("a"), "it is too large");
        verdicts.accept(key("b"));
        assert_eq!(verdicts.get(key("a")), Some(Err("it is too large".into())));
        assert_eq!((verdicts.get(key("b")), verdicts.get(key("c"))), (Some(Ok(())), None));
        verdicts.put(key("a"), Duration::ZERO, Err("forgotten at once".into()));
        assert_eq!(verdicts.get(key("a")), None);
        (0..5000).for_each(|key| verdicts.accept(key));
        assert!(verdicts.lock().len() <= MAX_VERDICTS);
    }
}
