// Names of instruction sets, for algorithms that this build leaves out.
#pragma once
