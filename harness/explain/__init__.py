"""Why a result is as it is: profile, advise, bricks, pitfalls."""
