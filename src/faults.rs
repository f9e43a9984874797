//! Single faults of the broker, to see whether `baton conformance` sees them.
//!
//! Only a build with the feature `faults` has any, and of those only the one that `BATON_FAULT` names. In every other build
//! [`is_on`] is constant, and the compiler leaves nothing of what it guards. Knows nothing but their names.

macro_rules! faults {
    ($($variant:ident $name:literal)*) => {
        /// Something that the broker does wrong.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[expect(missing_docs, reason = "each name says what goes wrong")]
        pub enum Fault { $($variant),* }

        impl Fault {
            /// All of them.
            pub const ALL: &[Fault] = &[$(Fault::$variant),*];

            /// Its name, as `BATON_FAULT` has it.
            pub const fn name(self) -> &'static str {
                match self { $(Fault::$variant => $name),* }
            }
        }
    };
}

faults! {
    TakesAnySignature "takes-any-signature"
    TakesUnsigned "takes-unsigned"
    TakesWeakKeys "takes-weak-keys"
    TakesAnyTime "takes-any-time"
    TakesAnySender "takes-any-sender"
    TakesChallengesTwice "takes-challenges-twice"
    AnswersRepeatsAnew "answers-repeats-anew"
    SignsReceiptsWrongly "signs-receipts-wrongly"
    ShowsAnotherKey "shows-another-key"
    ForgetsTheEpoch "forgets-the-epoch"
    MovesOwnershipAtAccept "moves-ownership-at-accept"
    KeepsNoAcceptDeadline "keeps-no-accept-deadline"
    TakesAnyContextDigest "takes-any-context-digest"
    StopsNoLoop "stops-no-loop"
    TellsNobodyOfFailures "tells-nobody-of-failures"
    RecordsNoLateMessage "records-no-late-message"
    DeliversOutOfOrder "delivers-out-of-order"
    IgnoresPriority "ignores-priority"
    LosesNackedMail "loses-nacked-mail"
    NeverRedelivers "never-redelivers"
    CountsShutdowns "counts-shutdowns"
    ParksNothing "parks-nothing"
    LetsAnybodySettle "lets-anybody-settle"
    HidesTheDomain "hides-the-domain"
}

/// Whether this is to go wrong.
#[cfg(not(feature = "faults"))]
pub const fn is_on(_: Fault) -> bool {
    false
}

/// Whether this is to go wrong.
#[cfg(feature = "faults")]
pub fn is_on(fault: Fault) -> bool {
    use std::sync::LazyLock;

    static NAMED: LazyLock<Option<Fault>> = LazyLock::new(|| {
        let name = std::env::var("BATON_FAULT").ok()?;
        let named = Fault::ALL.iter().copied().find(|fault| fault.name() == name);
        assert!(named.is_some(), "there is no fault {name}");
        named
    });
    *NAMED == Some(fault)
}
