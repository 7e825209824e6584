// MinGW says what the state of a conversion is where it has wide characters; Microsoft expects it here, too.
#pragma once

#include <wchar.h>
#include_next <stdio.h>
