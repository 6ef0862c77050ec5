"""Why a host is suspected of being faulty: the codes in replies, and their texts."""

SUSPICIONS = (
    "",
    "its stamps jumped though its clock did not",
    "most of its edges are outliers of the solve",
    "its UTC contradicts the other anchors'",
    "its UTC and other anchors' contradict each other, and no majority agrees",
    "most of its edges contradict each other by more than they can hide, so that its time is unknown",
)
JUMPED, OUTLYING, CONTRADICTING, DISPUTED, UNKNOWN = 1, 2, 3, 4, 5
