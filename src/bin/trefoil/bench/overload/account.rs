//! What became of the rows of each client.

use std::ops::AddAssign;

use serde::Serialize;
use trefoil::BatcherStats;

/// Numbers of rows. Each row that was asked for has one of the fates from `answered` to `unanswered`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    pub asked: u64,
    pub answered: u64,
    pub refused: u64,
    /// Answered with an error, because the deadline passed before the upload.
    pub expired: u64,
    /// Not answered before their client dropped the tickets.
    pub given_up: u64,
    /// Never answered.
    pub unanswered: u64,
    /// Due, but not asked for before the end, because the client was waiting for a free row, or late.
    pub held_back: u64,
    /// Rows among the answered ones: answered within the time that counts, answered after their deadline though they
    /// were uploaded before it, and answered with other bits than alone.
    pub counted: u64,
    pub late: u64,
    pub wrong: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.asked += other.asked;
        self.answered += other.answered;
        self.refused += other.refused;
        self.expired += other.expired;
        self.given_up += other.given_up;
        self.unanswered += other.unanswered;
        self.held_back += other.held_back;
        self.counted += other.counted;
        self.late += other.late;
        self.wrong += other.wrong;
    }
}

impl Counts {
    /// The rows that count for the client's share: all that were due, without those that it gave up itself.
    fn wanted(&self) -> u64 {
        self.asked + self.held_back - self.given_up
    }

    /// What disagrees with the other counts and with the batcher's own.
    pub fn disagree(&self, batcher: &Told) -> Vec<String> {
        let Self { asked, answered, refused, expired, given_up, unanswered, .. } = *self;
        let fates = answered + refused + expired + given_up + unanswered;
        let mut wrong = Vec::new();
        let mut told = |holds: bool, what: String| {
            if !holds {
                wrong.push(what)
            }
        };
        told(asked == fates, format!("{asked} rows asked for, {fates} with a fate"));
        told(refused == batcher.rejected, format!("{refused} rows refused, by the batcher {}", batcher.rejected));
        // A row that is given up may have expired before, and may be uploaded or not.
        let up_to = |count: u64| count..=count + given_up;
        told(
            up_to(expired).contains(&batcher.expired),
            format!("{expired} expired, by the batcher {}", batcher.expired),
        );
        let uploaded = batcher.uploaded;
        told(up_to(answered).contains(&uploaded), format!("{answered} answered, {uploaded} uploaded"));
        wrong
    }
}

/// The batcher's own counts.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Told {
    pub rejected: u64,
    pub expired: u64,
    pub uploaded: u64,
}

impl Told {
    pub fn of(stats: &BatcherStats) -> Self {
        Self { rejected: stats.rejected, expired: stats.expired, uploaded: stats.rows() }
    }
}

/// The account of a client.
#[derive(Clone, Copy, Debug, Default)]
pub struct Account {
    pub counts: Counts,
    /// The number of requests, and sums over them: answered rows squared, answered times wanted ones, wanted ones
    /// squared.
    requests: u64,
    squares: [u64; 3],
}

impl Account {
    /// Adds a request that is over.
    pub fn add(&mut self, request: Counts) {
        let (answered, wanted) = (request.answered, request.wanted());
        self.counts += request;
        self.requests += 1;
        let squares = [answered * answered, answered * wanted, wanted * wanted];
        self.squares.iter_mut().zip(squares).for_each(|(sum, square)| *sum += square);
    }
}

impl AddAssign for Account {
    fn add_assign(&mut self, other: Self) {
        self.counts += other.counts;
        self.requests += other.requests;
        self.squares.iter_mut().zip(other.squares).for_each(|(sum, square)| *sum += square);
    }
}

/// How equally equal clients were served. A client's share is the part of its rows that was answered, without those that
/// it gave up.
#[derive(Clone, Debug, Serialize)]
pub struct Fairness {
    /// Jain's index of the shares: 1 if all are equal, 1/n if one of n clients gets everything.
    pub jain: f64,
    /// The index to expect if chance alone decides which requests are answered.
    pub jain_by_chance: f64,
    pub least_share: f64,
    pub most_share: f64,
    /// All shares, ascending.
    pub shares: Vec<f64>,
}

impl Fairness {
    /// `None` if nothing was answered.
    pub fn of(accounts: &[Account]) -> Option<Self> {
        let accounts: Vec<_> = accounts.iter().filter(|account| account.counts.wanted() > 0).collect();
        let share = |counts: &Counts| counts.answered as f64 / counts.wanted() as f64;
        let mut shares: Vec<f64> = accounts.iter().map(|account| share(&account.counts)).collect();
        shares.sort_by(f64::total_cmp);
        let (sum, squares) = (shares.iter().sum::<f64>(), shares.iter().map(|share| share * share).sum::<f64>());
        let (&least_share, &most_share) = (shares.first()?, shares.last()?);
        if sum == 0.0 {
            return None;
        }
        let jain = sum * sum / (squares * shares.len() as f64);
        Some(Self { jain, jain_by_chance: by_chance(&accounts), least_share, most_share, shares })
    }
}

/// The index if every request is answered by chance, as requests were: 1 / (1 + v), where v is the variance of a share
/// over the square of the mean share. A share is a mean over the client's requests, so its variance follows from that
/// of a request.
fn by_chance(accounts: &[&Account]) -> f64 {
    let mut all = Account::default();
    accounts.iter().for_each(|account| all += **account);
    let [answered, both, wanted] = all.squares.map(|sum| sum as f64);
    let share = all.counts.answered as f64 / all.counts.wanted() as f64;
    let of_a_request = (answered - 2.0 * share * both + share * share * wanted) / all.requests as f64;
    let of_share =
        |account: &&Account| of_a_request * account.requests as f64 / (account.counts.wanted() as f64).powi(2);
    let variance = accounts.iter().map(of_share).sum::<f64>() / accounts.len() as f64;
    1.0 / (1.0 + variance / (share * share))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn request(rows: u64, answered: u64) -> Counts {
        Counts { asked: rows, answered, refused: rows - answered, ..Counts::default() }
    }

    #[test]
    fn counts_that_do_not_balance_are_told() {
        let counts = Counts { given_up: 2, expired: 1, asked: 13, ..request(10, 4) };
        let told = Told { rejected: 6, expired: 2, uploaded: 5 };
        assert_eq!(counts.disagree(&told), [""; 0]);
        assert_eq!(Counts { asked: 14, ..counts }.disagree(&told), ["14 rows asked for, 13 with a fate"]);
        let others = [Told { rejected: 5, ..told }, Told { expired: 4, ..told }, Told { uploaded: 3, ..told }];
        for told in others.into_iter().chain([Told { expired: 0, ..told }, Told { uploaded: 7, ..told }]) {
            assert_eq!(counts.disagree(&told).len(), 1, "{told:?}");
        }
    }

    #[test]
    fn equal_shares_are_fair_and_one_for_all_is_not() {
        let clients = |answered: [u64; 4]| {
            let account = |answered| {
                let mut account = Account::default();
                (0..100).for_each(|turn| account.add(request(4, if turn % 2 == 0 { answered } else { 4 - answered })));
                account
            };
            Fairness::of(&answered.map(account))
        };
        let equal = clients([4, 4, 0, 0]).unwrap();
        assert_eq!((equal.jain, equal.least_share, equal.most_share), (1.0, 0.5, 0.5));
        let mut one = [Account::default(); 4];
        one.iter_mut().enumerate().for_each(|(client, account)| account.add(request(8, 8 * u64::from(client == 1))));
        let one = Fairness::of(&one).unwrap();
        assert_eq!((one.jain, one.least_share, one.most_share), (0.25, 0.0, 1.0));
        assert!(Fairness::of(&[Account::default(); 2]).is_none());
        let mut refused = Account::default();
        refused.add(request(3, 0));
        assert!(Fairness::of(&[refused]).is_none());
    }

    #[test]
    fn the_index_by_chance_is_that_of_chance() {
        let mut random = Random::new(7);
        for requests in [10, 100] {
            let mut accounts = vec![Account::default(); 2_000];
            for account in &mut accounts {
                for _ in 0..requests {
                    let rows = 1 + random.next() % 4;
                    account.add(request(rows, if random.positive() < 0.4 { rows } else { 0 }));
                }
            }
            let fairness = Fairness::of(&accounts).unwrap();
            let [unequal, chance] = [fairness.jain, fairness.jain_by_chance].map(|index| 1.0 / index - 1.0);
            assert!((unequal / chance - 1.0).abs() < 0.15, "{fairness:?}");
        }
    }
}
