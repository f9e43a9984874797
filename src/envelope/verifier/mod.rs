//! Verification of many signatures by few keys.
//!
//! The answer is that of strict verification one by one, for any bytes. Strict verification (`ed25519_dalek`'s
//! `verify_strict`) takes a signature (R, s) of a message M under a key A if
//!
//! - s is canonical, that is less than the order of the base point B,
//! - R and A are points, and not of small order,
//! - the encoding of sB - kA, with k = SHA-512(R, A, M) modulo that order, is R byte for byte.
//!
//! Here the same point sB - kA is computed for each signature; only how is different: from multiples of B and of A that
//! were worked out beforehand. All of it is arithmetic in the whole group, so that nothing is assumed of A or R, which may
//! have a component of small order; k is reduced before it is multiplied, as there. The batch shares one thing, the
//! inversion that encoding needs. So a bad signature in a batch is found alone, and no other is any worse for it.
//!
//! The usual batch equation, a random linear combination that must come to zero, is no faster here, and its answer is
//! another one: an R with a component of small order passes it with a probability of up to one half.

use std::{collections::HashMap, fmt, sync::LazyLock};

use aws_lc_rs::digest::{self, SHA512};
use curve25519_dalek::{
    EdwardsPoint, Scalar,
    constants::ED25519_BASEPOINT_POINT,
    traits::{Identity as _, IsIdentity as _},
};

use super::keys::PublicKey;

/// Verifications by a key after which its multiples are worth working out: that takes as long as four.
const USES_BEFORE_MULTIPLES: u32 = 16;
/// Keys of a generation. At most twice as many are kept, 55 KiB each.
const KEYS_MAX: usize = 128;

/// A signature to be checked.
#[derive(Debug, Clone, Copy)]
pub struct Claim<'a> {
    /// Whose it should be.
    pub key: &'a PublicKey,
    /// What should be signed.
    pub input: &'a [u8],
    /// The 64 bytes.
    pub signature: &'a [u8],
}

/// Checks signatures, and remembers multiples of the keys that come often: of those that came last, in two generations.
#[derive(Default)]
pub struct Verifier {
    young: HashMap<[u8; 32], Known>,
    old: HashMap<[u8; 32], Known>,
}

impl fmt::Debug for Verifier {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Verifier({} keys)", self.young.len() + self.old.len())
    }
}

#[derive(Default)]
struct Known {
    uses: u32,
    multiples: Option<Multiples>,
}

impl Verifier {
    /// Which of the claims hold, in their order.
    pub fn verify(&mut self, claims: &[Claim<'_>]) -> Vec<bool> {
        let mut verdicts = vec![false; claims.len()];
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
        verdicts
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
mod tests {
    use curve25519_dalek::constants::EIGHT_TORSION;
    use proptest::prelude::*;

    use super::*;
    use crate::envelope::keys::PrivateKey;

    /// A verifier that knows the key's multiples already.
    fn verifier_of(key: &PublicKey) -> Verifier {
        let mut verifier = Verifier::default();
        for _ in 0..USES_BEFORE_MULTIPLES {
            verifier.multiples_of(key);
        }
        assert!(verifier.multiples_of(key).is_some());
        verifier
    }

    /// The verifier's answer, which must be the strict one.
    fn check(key: &PublicKey, input: &[u8], signature: &[u8]) -> bool {
        let strict = key.verifies(input, signature);
        let claim = Claim { key, input, signature };
        assert_eq!(verifier_of(key).verify(&[claim]), [strict], "{key:?} {}", hex::encode(signature));
        strict
    }

    fn scalar(number: u64) -> Scalar {
        Scalar::from_bytes_mod_order_wide(digest::digest(&SHA512, &number.to_le_bytes()).as_ref().try_into().unwrap())
    }

    /// Signs as one who has a private key and does not keep to the rules: with components of small order in A and R.
    fn sign_with_torsion(seed: u64, message: &[u8], of_key: EdwardsPoint, of_r: EdwardsPoint) -> (PublicKey, [u8; 64]) {
        let (a, r) = (scalar(seed), scalar(!seed));
        let key = EdwardsPoint::mul_base(&a) + of_key;
        let key = PublicKey::parse(key.compress().as_bytes()).unwrap();
        let r_bytes = (EdwardsPoint::mul_base(&r) + of_r).compress().to_bytes();
        let hash = digest::digest(&SHA512, &[&r_bytes, key.as_bytes(), message].concat());
        let k = Scalar::from_bytes_mod_order_wide(hash.as_ref().try_into().unwrap());
        let s = r + k * a;
        (key, [r_bytes, s.to_bytes()].concat().try_into().unwrap())
    }

    #[test]
    fn components_of_small_order_are_answered_strictly() {
        let mut taken = [0; 2];
        for of_key in EIGHT_TORSION {
            for of_r in EIGHT_TORSION {
                for seed in 0..4 {
                    let (key, signature) = sign_with_torsion(seed, b"message", of_key, of_r);
                    taken[usize::from(check(&key, b"message", &signature))] += 1;
                }
            }
        }
        assert!(taken[0] > 128 && taken[1] > 16, "refused and taken: {taken:?}");
    }

    #[test]
    fn r_of_small_order_is_refused() {
        for of_r in EIGHT_TORSION {
            for seed in 0..8 {
                // s = ka, so that sB - kA is the torsion component of kA alone.
                let (a, message) = (scalar(seed), seed.to_le_bytes());
                for of_key in EIGHT_TORSION {
                    let key = PublicKey::parse((EdwardsPoint::mul_base(&a) + of_key).compress().as_bytes()).unwrap();
                    let r = of_r.compress().to_bytes();
                    let hash = digest::digest(&SHA512, &[&r, &key.as_bytes()[..], &message].concat());
                    let k = Scalar::from_bytes_mod_order_wide(hash.as_ref().try_into().unwrap());
                    assert!(!check(&key, &message, &[r, (k * a).to_bytes()].concat()));
                }
            }
        }
    }

    #[test]
    fn encodings_that_are_not_canonical_are_refused() {
        let key = PrivateKey::from_seed(&[1; 32]);
        let signature = key.sign(b"message");
        // s plus the order of the base point, which is the same number to a careless reader.
        let order = hex::decode("edd3f55c1a631258d69cf7a2def9de1400000000000000000000000000000010").unwrap();
        let mut malleated = signature;
        let mut carry = 0;
        for (byte, more) in malleated[32..].iter_mut().zip(order) {
            let sum = u16::from(*byte) + u16::from(more) + carry;
            (*byte, carry) = (sum as u8, sum >> 8);
        }
        assert!(!check(&key.public(), b"message", &malleated));
        // y of R from p upwards: 2^255 - 19 + 0 to 18, with either sign.
        for more in 0..19_u8 {
            for sign in [0x7f, 0xff] {
                let mut r = [0xff; 32];
                (r[0], r[31]) = (0xed + more, sign);
                assert!(!check(&key.public(), b"message", &[&r[..], &signature[32..]].concat()));
            }
        }
        for length in [0, 32, 63, 65, 96] {
            assert!(!check(&key.public(), b"message", &signature.repeat(2)[..length]));
        }
        assert!(check(&key.public(), b"message", &signature));
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
        let mut verifier = Verifier::default();
        let often = PrivateKey::from_seed(&[9; 32]).public();
        for number in 0..1000_u64 {
            let rare = PublicKey::parse(EdwardsPoint::mul_base(&scalar(number)).compress().as_bytes()).unwrap();
            assert!(verifier.multiples_of(&rare).is_none());
            verifier.multiples_of(&often);
            assert!(verifier.young.len() <= KEYS_MAX && verifier.old.len() <= KEYS_MAX);
        }
        assert!(verifier.multiples_of(&often).is_some());
    }

    proptest! {
        /// Whatever is done to signatures in a batch, each is answered as strict verification alone answers it.
        #[test]
        fn a_batch_answers_as_strict_verification_one_by_one(
            signers in proptest::collection::vec((0_u8..4, 0_usize..8, any::<u8>(), any::<u16>()), 1..40),
        ) {
            let mut verifier = Verifier::default();
            for _ in 0..3 {
                let mut items = Vec::new();
                for (number, (signer, torsion, change, place)) in signers.iter().enumerate() {
                    let input = vec![number as u8; usize::from(*place) % 200];
                    let (key, mut signature) = match torsion % 2 {
                        0 => {
                            let key = PrivateKey::from_seed(&[*signer; 32]);
                            (key.public(), key.sign(&input))
                        }
                        _ => sign_with_torsion((*signer).into(), &input, EIGHT_TORSION[*torsion], EIGHT_TORSION[torsion / 2]),
                    };
                    if change % 3 == 0 {
                        signature[usize::from(*place) % 64] ^= change / 3;
                    }
                    items.push((key, input, signature));
                }
                let claim = |(key, input, signature): &'_ (PublicKey, Vec<u8>, [u8; 64])| key.verifies(input, signature);
                let strict: Vec<bool> = items.iter().map(claim).collect();
                let claims: Vec<_> =
                    items.iter().map(|(key, input, signature)| Claim { key, input, signature }).collect();
                prop_assert_eq!(verifier.verify(&claims), strict);
            }
        }
    }
}
