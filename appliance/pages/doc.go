// Package pages makes the pages for people from the View of a round: the first page, a page for each
// thing, lists of all things of a kind, and the drawing of the paths from clients to pods.
//
// It alone knows the content and the address of each page. Each request reads one Index, which does
// not change, and takes no lock of the loop. Only the rows that a page shows are made.
//
// Its limit: it decides nothing and draws nothing. Package status finds the faults and their reasons,
// and package page knows HTML, CSS and SVG.
package pages
