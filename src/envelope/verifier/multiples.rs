//! From multiples of keys that were worked out beforehand, for any processor. One signature takes half as long as by plain
//! multiplication.

use std::{collections::HashMap, fmt, sync::LazyLock};

use aws_lc_rs::digest::{self, SHA512};
use curve25519_dalek::{
    EdwardsPoint, Scalar,
    constants::ED25519_BASEPOINT_POINT,
    traits::{Identity as _, IsIdentity as _},
};

use super::Claim;
use crate::envelope::keys::PublicKey;

/// Verifications by a key after which its multiples are worth working out: that takes as long as four.
const USES_BEFORE_MULTIPLES: u32 = 16;
/// Keys of a generation. At most twice as many are kept, 55 KiB each.
const KEYS_MAX: usize = 128;

/// Multiples of the keys that come often: of those that came last, in two generations.
#[derive(Default)]
pub(super) struct Known {
    young: HashMap<[u8; 32], Key>,
    old: HashMap<[u8; 32], Key>,
}

impl fmt::Debug for Known {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Known({} keys)", self.young.len() + self.old.len())
    }
}

#[derive(Default)]
struct Key {
    uses: u32,
    multiples: Option<Multiples>,
}

impl Known {
    /// Which of the claims hold, in their order.
    pub(super) fn verify(&mut self, claims: &[Claim<'_>], verdicts: &mut [bool]) {
        let mut points = Vec::with_capacity(claims.len());
        let mut places = Vec::with_capacity(claims.len());
        for (place, claim) in claims.iter().enumerate() {
            match self.multiples_of(claim.key) {
                None => verdicts[place] = claim.key.verifies(claim.input, claim.signature),
                Some(multiples) => {
                    if let Some(point) = expected_r(claim, multiples) {
                        points.push(point);
                        places.push(place);
                    }
                }
            }
        }
        let encoded = EdwardsPoint::compress_batch_alloc(&points);
        for ((place, point), encoded) in places.into_iter().zip(&points).zip(encoded) {
            // Only what is equal was decoded as that point.
            verdicts[place] = claims[place].signature[..32] == encoded.to_bytes() && !point.is_small_order();
        }
    }

    /// The multiples of the key's negative, if it comes often.
    fn multiples_of(&mut self, key: &PublicKey) -> Option<&Multiples> {
        let bytes = key.as_bytes();
        if !self.young.contains_key(bytes) {
            let known = self.old.remove(bytes).unwrap_or_default();
            if self.young.len() == KEYS_MAX {
                self.old = std::mem::take(&mut self.young);
            }
            self.young.insert(*bytes, known);
        }
        let known = self.young.get_mut(bytes).expect("it was just put there");
        known.uses = known.uses.saturating_add(1);
        if known.uses > USES_BEFORE_MULTIPLES {
            known.multiples.get_or_insert_with(|| Multiples::new(-key.point(), 4));
        }
        known.multiples.as_ref()
    }
}

/// sB - kA. `None`: not a signature.
fn expected_r(claim: &Claim<'_>, multiples: &Multiples) -> Option<EdwardsPoint> {
    static OF_BASE: LazyLock<Multiples> = LazyLock::new(|| Multiples::new(ED25519_BASEPOINT_POINT, 1));
    let (r, s) = <&[u8; 64]>::try_from(claim.signature).ok()?.split_at(32);
    let s: Scalar = Option::from(Scalar::from_canonical_bytes(s.try_into().expect("32 bytes")))?;
    let mut hash = digest::Context::new(&SHA512);
    for part in [r, claim.key.as_bytes(), claim.input] {
        hash.update(part);
    }
    let k = Scalar::from_bytes_mod_order_wide(hash.finish().as_ref().try_into().expect("64 bytes"));
    Some(OF_BASE.times(&s) + multiples.times(&k))
}

/// Multiples of a point P: of each 2^(6 x strides x i) P, the first 32. A product by a scalar is then one addition for each
/// 6 bits of the scalar, and 6 doublings for each further one that shares a row, a stride.
struct Multiples {
    strides: usize,
    rows: Vec<[EdwardsPoint; HALF]>,
}

const DIGIT_BITS: usize = 6;
/// Digits are from -31 to 32.
const HALF: usize = 1 << (DIGIT_BITS - 1);
/// For scalars below 2^253.
const DIGITS: usize = 43;

impl Multiples {
    fn new(point: EdwardsPoint, strides: usize) -> Self {
        let mut first = point;
        let mut rows = Vec::with_capacity(DIGITS.div_ceil(strides));
        for _ in 0..DIGITS.div_ceil(strides) {
            let mut row = [first; HALF];
            for place in 1..HALF {
                row[place] = row[place - 1] + first;
            }
            rows.push(row);
            for _ in 0..strides {
                first = times_64(&first);
            }
        }
        Self { strides, rows }
    }

    /// In a time that depends on the scalar: only for what is public.
    fn times(&self, scalar: &Scalar) -> EdwardsPoint {
        let digits = digits(scalar);
        let mut sum = EdwardsPoint::identity();
        for stride in (0..self.strides).rev() {
            if !sum.is_identity() {
                sum = times_64(&sum);
            }
            for (row, digit) in self.rows.iter().zip(digits[stride..].iter().step_by(self.strides)) {
                let multiple = usize::from(digit.unsigned_abs());
                match digit.signum() {
                    1 => sum += &row[multiple - 1],
                    -1 => sum -= &row[multiple - 1],
                    _ => {}
                }
            }
        }
        sum
    }
}

/// Six doublings.
fn times_64(point: &EdwardsPoint) -> EdwardsPoint {
    point.mul_by_cofactor().mul_by_cofactor()
}

/// A scalar's digits to the base 64, least first.
fn digits(scalar: &Scalar) -> [i8; DIGITS] {
    let mut bytes = [0; 36];
    bytes[..32].copy_from_slice(scalar.as_bytes());
    let mut digits = [0; DIGITS];
    let mut carry = 0;
    for (place, digit) in digits.iter_mut().enumerate() {
        let bit = place * DIGIT_BITS;
        let word = u32::from_le_bytes(bytes[bit / 8..bit / 8 + 4].try_into().expect("4 bytes"));
        let value = ((word >> (bit % 8)) & (2 * HALF as u32 - 1)) as i8 + carry;
        carry = i8::from(value > HALF as i8);
        *digit = value - carry * (2 * HALF as i8);
    }
    assert_eq!(carry, 0, "a scalar is less than 2^253");
    digits
}

#[cfg(test)]
pub(super) mod tests {
    use curve25519_dalek::constants::EIGHT_TORSION;

    use super::*;
    use crate::envelope::keys::PrivateKey;

    impl Known {
        /// Which knows the key's multiples already.
        pub(in super::super) fn of(key: &PublicKey) -> Self {
            let mut known = Self::default();
            for _ in 0..USES_BEFORE_MULTIPLES {
                known.multiples_of(key);
            }
            assert!(known.multiples_of(key).is_some());
            known
        }
    }

    pub(in super::super) fn scalar(number: u64) -> Scalar {
        Scalar::from_bytes_mod_order_wide(digest::digest(&SHA512, &number.to_le_bytes()).as_ref().try_into().unwrap())
    }

    #[test]
    fn products_are_those_of_plain_multiplication() {
        let edges =
            [Scalar::ZERO, Scalar::ONE, -Scalar::ONE, Scalar::from(32_u8), Scalar::from(33_u8), Scalar::from(64_u8)];
        for strides in [1, 3, 4] {
            let point = EdwardsPoint::mul_base(&scalar(7)) + EIGHT_TORSION[1];
            let multiples = Multiples::new(point, strides);
            for scalar in edges.into_iter().chain((0..50).map(scalar)) {
                assert_eq!(multiples.times(&scalar), point * scalar);
            }
        }
    }

    #[test]
    fn the_keys_that_come_often_are_remembered_within_bounds() {
        let mut known = Known::default();
        let often = PrivateKey::from_seed(&[9; 32]).public();
        for number in 0..1000_u64 {
            let rare = PublicKey::parse(EdwardsPoint::mul_base(&scalar(number)).compress().as_bytes()).unwrap();
            assert!(known.multiples_of(&rare).is_none());
            known.multiples_of(&often);
            assert!(known.young.len() <= KEYS_MAX && known.old.len() <= KEYS_MAX);
        }
        assert!(known.multiples_of(&often).is_some());
    }
}
