// A few lines that make the pages better; every page reads without them.
"use strict";
