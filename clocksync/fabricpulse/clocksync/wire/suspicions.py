"""Why a host is suspected of being faulty: the codes in replies, and the words for people."""

SUSPICIONS = (
    "",
    "its stamps jumped though its clock did not",
    "most of its edges are outliers of the solve",
    "its UTC contradicts the other anchors'",
    "its UTC and other anchors' contradict each other, and no majority agrees",
)
JUMPED, OUTLYING, CONTRADICTING, DISPUTED = 1, 2, 3, 4
