// How far an engine may be from the reference: the error of a tensor, and of each of its
// (sequence, head), relative to the RMS of the reference, and the largest error of an element.
#pragma once

#include "data.h"

// The worst of these errors as a share of what is allowed: at most 1 for an engine that is right,
// infinity for results that are not finite and for a reference so small that nothing is tested.
double worst_share(const deltaworks::Problem& problem, deltaworks::Port port, const Arrays& got,
                   const Arrays& reference);
